// Plain versions of what portable.h asks of its host: one thread, no packed weights. For backends whose own device runs the heavy ops.
#include "portable.h"

namespace di {

void host_parallel(di_device *, int64_t n, int64_t, Body body, void *context) {
  Arena scratch;
  body(context, 0, n, scratch);
}

Arena &host_arena(di_device *) {
  static thread_local Arena arena;
  return arena;
}

void host_product(di_device *, const di_weight *w, const float *values, int64_t n, int64_t k, const real *x, int64_t rows, real *out) {
  std::vector<float> tmp(static_cast<size_t>(k));
  std::vector<real> wide(static_cast<size_t>(k));
  for (int64_t c = 0; c < n; c++) {
    const float *v = values + c * k;
    if (w) {
      decode_row(tmp.data(), *w, 0, c);
      v = tmp.data();
    }
    std::copy(v, v + k, wide.begin());
    for (int64_t r = 0; r < rows; r++) out[r * n + c] = dot(x + r * k, wide.data(), k);
  }
}

}  // namespace di
