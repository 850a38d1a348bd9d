#include "check.h"

#include "numeric.h"

namespace di {

constexpr int64_t kMaxDim = int64_t(1) << 40, kMaxTotal = int64_t(1) << 46;

static std::string text(const char *format, va_list ap) {
  char buf[512];
  std::vsnprintf(buf, sizeof buf, format, ap);
  return buf;
}

void refuse(const char *format, ...) {
  va_list ap;
  va_start(ap, format);
  std::string s = text(format, ap);
  va_end(ap);
  throw Fault{DI_INVALID_ARGUMENT, DI_SCOPE_STEP, s};
}

void fault(uint32_t code, uint32_t scope, const char *format, ...) {
  va_list ap;
  va_start(ap, format);
  std::string s = text(format, ap);
  va_end(ap);
  throw Fault{code, scope, s};
}

di_rc report(di_fail *f, uint32_t code, uint32_t scope, int32_t native, const char *msg) {
  if (!f || f->size < sizeof(di_fail)) return code;  // all fields below belong to the first release
  f->code = code;
  f->scope = scope;
  f->native = native;
  f->msg_len = 0;
  if (f->msg && f->msg_cap > 0) {
    uint64_t len = std::strlen(msg);
    if (len > f->msg_cap) len = f->msg_cap;
    std::memcpy(f->msg, msg, len);
    f->msg_len = len;
  }
  return code;
}

const char *dtype_name(uint32_t d) {
  static const char *const names[] = {"none", "F32", "F64", "BF16", "I32", "I64", "U8"};
  return d < 7 ? names[d] : "of an unknown dtype";
}

int64_t elem_bytes(uint32_t dtype) {
  switch (dtype) {
    case DI_F32: case DI_I32: return 4;
    case DI_F64: case DI_I64: return 8;
    case DI_BF16: return 2;
    case DI_U8: return 1;
  }
  return 0;
}

static void dtype_is(const char *name, const di_tensor &t, uint32_t dtype) {
  if (t.dtype != dtype) refuse("%s is %s, must be %s", name, dtype_name(t.dtype), dtype_name(dtype));
}

static int64_t total(const char *name, const di_tensor &t) {
  if (t.rank < 1 || t.rank > 4) refuse("%s has %u dimensions, must have 1 to 4", name, t.rank);
  int64_t n = 1;
  for (uint32_t i = 0; i < t.rank; i++) {
    if (t.dim[i] < 0 || t.dim[i] > kMaxDim) refuse("%s dimension %u is %lld", name, i, (long long)t.dim[i]);
    if (t.dim[i] && n > kMaxTotal / t.dim[i]) refuse("%s has more than 2^46 elements", name);
    n *= t.dim[i];
  }
  return n;
}

static void memory(const char *name, const di_tensor &t, int64_t n) {
  int64_t w = width(t);
  if (t.stride && (t.stride < w || t.stride > kMaxTotal)) refuse("%s row stride %lld is outside its row of %lld to 2^46", name, (long long)t.stride, (long long)w);
  if (n == 0) return;
  if (!t.data) refuse("%s is absent", name);
  if (uintptr_t(t.data) % uintptr_t(elem_bytes(t.dtype))) refuse("%s at %p is not aligned to %lld bytes", name, t.data, (long long)elem_bytes(t.dtype));
}

void shape(const char *name, const di_tensor &t, uint32_t dtype, std::initializer_list<int64_t> dims) {
  dtype_is(name, t, dtype);
  int64_t n = total(name, t);
  const int64_t *d = dims.begin();
  if (dims.size() == 2 && t.rank > 2) {  // rows of any inner shape
    int64_t w = width(t);
    if ((d[0] >= 0 && t.dim[0] != d[0]) || (d[1] >= 0 && w != d[1]))
      refuse("%s has %lld rows of %lld, must have %lld of %lld", name, (long long)t.dim[0], (long long)w, (long long)d[0], (long long)d[1]);
  } else {
    if (t.rank != dims.size()) refuse("%s has %u dimensions, must have %zu", name, t.rank, dims.size());
    for (size_t i = 0; i < dims.size(); i++)
      if (d[i] >= 0 && t.dim[i] != d[i]) refuse("%s dimension %zu is %lld, must be %lld", name, i, (long long)t.dim[i], (long long)d[i]);
  }
  memory(name, t, n);
}

void flat(const char *name, const di_tensor &t, uint32_t dtype, int64_t want) {
  dtype_is(name, t, dtype);
  int64_t n = total(name, t);
  if (n != want) refuse("%s has %lld elements, must have %lld", name, (long long)n, (long long)want);
  if (t.stride && t.stride != width(t)) refuse("%s must be dense, its row stride is %lld of a row of %lld", name, (long long)t.stride, (long long)width(t));
  memory(name, t, n);
}

Extent rows(const char *name, const di_tensor &t, uint32_t dtype) {
  dtype_is(name, t, dtype);
  if (!elem_bytes(dtype)) refuse("%s has unknown dtype %u", name, t.dtype);
  int64_t n = total(name, t), cols = t.dim[t.rank - 1];
  memory(name, t, n);
  return {cols ? n / cols : 0, cols};
}

void same_shape(const char *xname, const di_tensor &x, const char *yname, const di_tensor &y) {
  if (!elem_bytes(x.dtype) || x.dtype != y.dtype || x.rank != y.rank)
    refuse("%s is %s of rank %u, %s %s of rank %u: must be equal", xname, dtype_name(x.dtype), x.rank, yname, dtype_name(y.dtype), y.rank);
  rows(xname, x, x.dtype);
  rows(yname, y, y.dtype);
  for (uint32_t i = 0; i < x.rank; i++)
    if (x.dim[i] != y.dim[i]) refuse("dimension %u of %s is %lld, of %s %lld: must be equal", i, xname, (long long)x.dim[i], yname, (long long)y.dim[i]);
}

di_batch row_arrays(const di_batch *p, int64_t n) {
  di_batch b = known(p, "batch");
  if (b.rows < 0 || b.seqs < 0 || b.rows != n) refuse("batch has %d rows and %d sequences, the operands have %lld rows", b.rows, b.seqs, (long long)n);
  if (n > 0 && (!b.pos || !b.seq || !b.token || !b.flag)) refuse("batch lacks its row arrays");
  return b;
}

void seq_arrays(const di_batch &b) {
  if (b.rows == 0) return;
  if (b.seqs < 1 || !b.seq_first || !b.seq_rows || !b.seq_slot || !b.seq_low || !b.seq_write) refuse("batch lacks its sequence arrays");
  for (int32_t s = 0; s < b.seqs; s++) {
    if (b.seq_rows[s] < 0 || b.seq_first[s] < 0 || b.seq_first[s] > b.rows - b.seq_rows[s])
      refuse("sequence %d has rows %d+%d of %d", s, b.seq_first[s], b.seq_rows[s], b.rows);
    if (b.seq_slot[s] < 0) refuse("sequence %d has state slot %d", s, b.seq_slot[s]);
  }
  for (int32_t r = 0; r < b.rows; r++) {
    int32_t s = b.seq[r];
    if (s < 0 || s >= b.seqs) refuse("row %d belongs to sequence %d of %d", r, s, b.seqs);
    if (r < b.seq_first[s] || r >= b.seq_first[s] + b.seq_rows[s]) refuse("row %d lies outside its sequence %d", r, s);
    if (b.pos[r] < 0 || b.pos[r] == INT32_MAX) refuse("row %d has position %d", r, b.pos[r]);
    if (r > b.seq_first[s] && b.pos[r] != b.pos[r - 1] + 1) refuse("row %d has position %d after %d: positions of a sequence must be consecutive", r, b.pos[r], b.pos[r - 1]);
  }
}

void no_group(const void *group) {
  if (group) fault(DI_UNIMPLEMENTED, DI_SCOPE_PROGRAM, "exchange between ranks: this backend has one rank");
}

std::string name_of(const di_weight &w) {
  if (!w.name.ptr || w.name.len == 0 || w.name.len > 4096) return "";
  return " " + std::string(w.name.ptr, w.name.len < 200 ? w.name.len : 200);
}

static const char *weight_problem(const di_weight &w) {
  if (w.parts < 1 || w.n < 1 || w.k < 1 || w.n > kMaxDim || w.k > kMaxDim) return "needs at least one part, row and column";
  bool scaled = false;
  size_t align = 1;
  switch (w.format) {
    case DI_W_BF16: align = 2; break;
    case DI_W_F32: case DI_W_I32: align = 4; break;
    case DI_W_I64: align = 8; break;
    case DI_W_FP8_TILE: case DI_W_FP8_ROW:
      if (w.tile < 1) return "needs a scale tile of at least 1";
      scaled = true;
      break;
    case DI_W_MXFP4:
      if (w.k % 32) return "MXFP4 needs a multiple of 32 columns";
      scaled = true;
      break;
    default: return "has an unknown format";
  }
  if (!w.data || (scaled && !w.scale)) return "has no data or no scales";
  for (uint32_t i = 0; i < w.parts; i++) {
    if (!w.data[i]) return "has a part without data";
    if (uintptr_t(w.data[i]) % align) return "has a part that is not aligned to its elements";
    if (scaled && !w.scale[i]) return "has a part without scales";
  }
  return nullptr;
}

di_weight weight(const char *name, const di_weight *p) {
  if (!p) refuse("weight %s is absent", name);
  di_weight w = known(p, "weight");
  if (const char *problem = weight_problem(w)) refuse("weight %s%s %s", name, name_of(w).c_str(), problem);
  return w;
}

void decode_row(float *y, const di_weight &w, int64_t part, int64_t n) {
  const int64_t k = w.k, t = w.tile;
  const uint8_t *data = static_cast<const uint8_t *>(w.data[part]);
  switch (w.format) {
    case DI_W_BF16:
      widen(y, reinterpret_cast<const uint16_t *>(data) + n * k, k);
      return;
    case DI_W_F32:
      std::memcpy(y, data + n * k * 4, size_t(k) * 4);
      return;
    case DI_W_FP8_TILE:
    case DI_W_FP8_ROW: {
      int64_t cols = (k + t - 1) / t;
      const uint8_t *s = static_cast<const uint8_t *>(w.scale[part]) + (w.format == DI_W_FP8_TILE ? n / t : n) * cols;
      data += n * k;
      for (int64_t g = 0; g < cols; g++) {
        float f = e8m0(s[g]);
        int64_t end = g * t + t < k ? g * t + t : k;
        for (int64_t i = g * t; i < end; i++) y[i] = e4m3(data[i]) * f;
      }
      return;
    }
    case DI_W_MXFP4: {
      const uint8_t *s = static_cast<const uint8_t *>(w.scale[part]) + n * (k / 32);
      data += n * (k / 2);
      for (int64_t g = 0; g < k / 32; g++) {
        float f = e8m0(s[g]);
        for (int64_t i = g * 16; i < g * 16 + 16; i++) {
          y[2 * i] = e2m1(data[i]) * f;
          y[2 * i + 1] = e2m1(data[i] >> 4) * f;
        }
      }
      return;
    }
    case DI_W_I64:
      for (int64_t i = 0; i < k; i++) y[i] = float(reinterpret_cast<const int64_t *>(data)[n * k + i]);
      return;
    case DI_W_I32:
      for (int64_t i = 0; i < k; i++) y[i] = float(reinterpret_cast<const int32_t *>(data)[n * k + i]);
      return;
  }
}

int64_t int_at(const di_weight &w, int64_t n, int64_t i) {
  int64_t at = n * w.k + i;
  if (w.format == DI_W_I64) return static_cast<const int64_t *>(w.data[0])[at];
  return static_cast<const int32_t *>(w.data[0])[at];
}

void copy_row(const di_tensor &y, int64_t i, const di_tensor &x, int64_t k) {
  int64_t e = elem_bytes(x.dtype), n = width(x) * e;
  if (n) std::memmove(static_cast<char *>(y.data) + i * row_stride(y) * e, static_cast<const char *>(x.data) + k * row_stride(x) * e, size_t(n));
}

}  // namespace di
