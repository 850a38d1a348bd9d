// The inner loops, compiled once per CPU variant. All variants do the same operations in the same order, so their results are equal bit for bit.
#ifndef DI_CPU_KERNEL_H
#define DI_CPU_KERNEL_H

#include <cstdint>

#include "numeric.h"

constexpr int64_t kTile = 16;  // columns of a packed tile: w[k][16]

#define Kernels SUMS(Kernels)
#define kernels_generic SUMS(kernels_generic)
#define kernels_avx2 SUMS(kernels_avx2)
struct Kernels {
  const char *name;
  // out[r,0..15] = x[r,:k] . tile, in the order of kBlock. x rows ldx apart, out rows ldo apart.
  void (*tile_f32)(const real *x, int64_t ldx, int64_t rows, const float *tile, int64_t k, real *out, int64_t ldo);
  void (*tile_bf16)(const real *x, int64_t ldx, int64_t rows, const uint16_t *tile, int64_t k, real *out, int64_t ldo);
  // acc[0..d-1] = sum over i of p[i] * keys[i,:], i ascending.
  void (*weighted)(real *acc, const real *p, const float *keys, int64_t n, int64_t d);
  // e[i] = exp(s[i]-m)
  void (*exps)(real *e, const real *s, real m, int64_t n);
};

extern const Kernels kernels_generic;
#if defined(__x86_64__)
extern const Kernels kernels_avx2;
#endif

#endif
