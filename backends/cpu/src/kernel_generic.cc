// Every CPU of the architecture (x86-64-v2 on amd64): 128-bit vectors.
#define LANES 4
#define ROWS 2
#define NAME "generic"
#define KERNELS kernels_generic
#include "kernel.inc"
