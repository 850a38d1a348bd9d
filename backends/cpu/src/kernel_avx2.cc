// amd64 with AVX2: 256-bit vectors. Multiply and add stay separate operations, as in the generic variant.
#if defined(__x86_64__)
#define LANES 8
#define ROWS 4
#define NAME "avx2"
#define KERNELS kernels_avx2
#include "kernel.inc"
#endif
