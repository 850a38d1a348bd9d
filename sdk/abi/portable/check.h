// Argument checks and views of the ABI structs. A refused call throws Fault, which guard() turns into a return code and di_fail: no exception leaves an op.
#ifndef DI_PORTABLE_CHECK_H
#define DI_PORTABLE_CHECK_H

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <new>
#include <string>

#include "di_backend_v1.h"

namespace di {

struct Fault {
  uint32_t code, scope;
  std::string msg;
};

[[noreturn]] void refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));                               // INVALID_ARGUMENT, step
[[noreturn]] void fault(uint32_t code, uint32_t scope, const char *format, ...) __attribute__((format(printf, 3, 4)));  // any other

di_rc report(di_fail *f, uint32_t code, uint32_t scope, int32_t native, const char *msg);

template <class F>
di_rc guard(di_fail *f, F &&body) {
  try {
    body();
    return DI_OK;
  } catch (const Fault &e) {
    return report(f, e.code, e.scope, 0, e.msg.c_str());
  } catch (const std::bad_alloc &) {
    return report(f, DI_RESOURCE_EXHAUSTED, DI_SCOPE_HOST, 0, "out of memory");
  } catch (const std::exception &e) {
    return report(f, DI_INTERNAL, DI_SCOPE_DEVICE, 0, e.what());
  } catch (...) {
    return report(f, DI_INTERNAL, DI_SCOPE_DEVICE, 0, "unknown exception");
  }
}

// The caller's struct as this build knows it: bytes past its size read as zero.
template <class T>
T known(const T *p, const char *what) {
  if (!p) refuse("%s is NULL", what);
  if (p->size < 8) refuse("%s has size %u: the caller must set it to sizeof, at least 8", what, p->size);
  T t;
  std::memset(static_cast<void *>(&t), 0, sizeof t);
  std::memcpy(static_cast<void *>(&t), p, p->size < sizeof t ? p->size : sizeof t);
  t.size = sizeof t;
  return t;
}

const char *dtype_name(uint32_t d);
int64_t elem_bytes(uint32_t dtype);

inline bool present(const di_tensor &t) { return t.data != nullptr; }
// Elements in one row of dim 0.
inline int64_t width(const di_tensor &t) {
  int64_t n = 1;
  for (uint32_t i = 1; i < t.rank && i < 4; i++) n *= t.dim[i];
  return n;
}
inline int64_t row_stride(const di_tensor &t) { return t.stride ? t.stride : width(t); }
template <class E>
inline E *row(const di_tensor &t, int64_t i) { return static_cast<E *>(t.data) + i * row_stride(t); }
// Row i counted over all dimensions but the last.
template <class E>
inline E *last_row(const di_tensor &t, int64_t i) {
  int64_t cols = t.dim[t.rank - 1];
  if (t.rank == 1) return static_cast<E *>(t.data);
  int64_t per = width(t) / cols;
  return static_cast<E *>(t.data) + i / per * row_stride(t) + i % per * cols;
}

// Checks, each refusing with the operand's name. A wanted size of -1 accepts any.
void shape(const char *name, const di_tensor &t, uint32_t dtype, std::initializer_list<int64_t> dims);
void flat(const char *name, const di_tensor &t, uint32_t dtype, int64_t total);  // dense, any rank, total elements
struct Extent { int64_t rows, cols; };
Extent rows(const char *name, const di_tensor &t, uint32_t dtype);  // any rank, row by row along the last dimension
void same_shape(const char *xname, const di_tensor &x, const char *yname, const di_tensor &y);
// Dimension i of an operand whose rank has not been checked yet, 0 when it has none.
inline int64_t dim(const di_tensor &t, uint32_t i) { return i < t.rank && i < 4 ? t.dim[i] : 0; }

// Batch checks. row_arrays: rows and their token, pos, seq, flag. seq_arrays: that sequences own the rows in order.
di_batch row_arrays(const di_batch *b, int64_t rows);
void seq_arrays(const di_batch &b);
void no_group(const void *group);

// Weight checks and decoding.
di_weight weight(const char *name, const di_weight *w);
std::string name_of(const di_weight &w);
// Row n of a part as floats: the exact product of code and scale. y has k values.
void decode_row(float *y, const di_weight &w, int64_t part, int64_t n);
int64_t int_at(const di_weight &w, int64_t n, int64_t i);  // an element of an integer weight

void copy_row(const di_tensor &y, int64_t i, const di_tensor &x, int64_t k);  // one row of dim 0, equal dtype and width

}  // namespace di
#endif
