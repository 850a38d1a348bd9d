// The Vector family of op set 1 in portable C++17, with float or, where DI_SUMS_F64 is defined, double sums (numeric.h). A backend compiles these files in and takes the whole table, or single entries, from vector_ops().
//
// What the portable ops need from their backend are the three functions under "Host". serial.cc gives plain versions of them for a backend that has none
// of its own; a backend with a thread pool or packed weights defines them itself and leaves serial.cc out.
#ifndef DI_PORTABLE_H
#define DI_PORTABLE_H

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "check.h"
#include "di_backend_v1.h"
#include "numeric.h"

namespace di {

// Scratch memory of one thread, reused between ops. Pointers are valid until reset() or until the Arena goes.
class Arena {
 public:
  void reset() { block_ = 0, used_ = 0; }
  template <class T>
  T *get(int64_t n) {
    size_t bytes = (size_t(n < 1 ? 1 : n) * sizeof(T) + 63) & ~size_t(63);
    while (block_ < blocks_.size() && used_ + bytes > blocks_[block_].size) block_++, used_ = 0;
    if (block_ == blocks_.size()) {
      size_t size = std::max(bytes, blocks_.empty() ? size_t(1) << 16 : 2 * blocks_.back().size);
      blocks_.push_back({std::unique_ptr<char[]>(new char[size + 64]), size});
      used_ = 0;
    }
    char *p = blocks_[block_].data.get();
    p += (64 - uintptr_t(p) % 64) % 64 + used_;
    used_ += bytes;
    return reinterpret_cast<T *>(p);
  }
  struct Mark { size_t block, used; };
  Mark mark() const { return {block_, used_}; }
  void rewind(Mark m) { block_ = m.block, used_ = m.used; }

 private:
  struct Block { std::unique_ptr<char[]> data; size_t size; };
  std::vector<Block> blocks_;
  size_t block_ = 0, used_ = 0;
};

// ---- Host: defined by the backend, or by serial.cc -----------------------------------------------------------

using Body = void (*)(void *context, int64_t lo, int64_t hi, Arena &scratch);

// Runs body over disjoint ranges covering [0,n), possibly at the same time, and returns when all are done. One item costs about cost multiply-adds.
// The split must not change results. An exception of a body is passed on to the caller.
void host_parallel(di_device *, int64_t n, int64_t cost, Body body, void *context);
// The caller's own scratch, reset by every op that takes it.
Arena &host_arena(di_device *);
// out[r,c] = x[r,:k] . w[c,:k] in the order of kBlock, rows x n values, dense. Row c of w: of the weight when given, else of values.
#define host_product SUMS(host_product)
void host_product(di_device *, const di_weight *w, const float *values, int64_t n, int64_t k, const real *x, int64_t rows, real *out);

template <class F>
void parallel(di_device *d, int64_t n, int64_t cost, F &&body) {
  if (n > 0)
    host_parallel(d, n, cost, [](void *c, int64_t lo, int64_t hi, Arena &a) { (*static_cast<std::remove_reference_t<F> *>(c))(lo, hi, a); }, &body);
}

// One call per item, the scratch reset before each.
template <class F>
void each(di_device *d, int64_t n, int64_t cost, F &&body) {
  parallel(d, n, cost, [&](int64_t lo, int64_t hi, Arena &a) {
    for (int64_t i = lo; i < hi; i++) {
      a.reset();
      body(i, a);
    }
  });
}

// ---- The ops ---------------------------------------------------------------------------------------------------

#define vector_ops SUMS(vector_ops)
const di_vector_fns &vector_ops();

}  // namespace di
#endif
