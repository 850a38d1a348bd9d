// The matrix family: a unit of work is one tile of 16 columns against up to 64 rows.
#include "device.h"

using namespace di;

constexpr int64_t kRows = 64;

namespace {

// One product: columns of w (or of values) against rows of x.
struct Product {
  di_device *dev;
  const di_weight *w = nullptr;
  const Packed *packed = nullptr;
  const float *values = nullptr;  // [n,k], in place of w
  int64_t n = 0, k = 0, groups = 1;
  const real *x = nullptr;
  int64_t ldx = 0;

  // Computes rows [r0,r1) of a part against the columns [c0,c0+cols) of one tile and hands each row of results to store(row, c0, values, cols).
  template <class Store>
  void tile(int64_t part, int64_t r0, int64_t r1, int64_t c0, int64_t cols, int64_t xo, Arena &s, Store &&store) const {
    real out[kRows * kTile];
    const Kernels &kn = *dev->SUMS(kernels);
    const float *wf = nullptr;
    const uint16_t *wb = nullptr;
    if (packed && c0 % kTile == 0) {
      const void *t = packed->tile(part, c0 / kTile);
      if (packed->f32) wf = static_cast<const float *>(t);
      else wb = static_cast<const uint16_t *>(t);
    } else {
      float *rows = s.get<float>(cols * k), *t = s.get<float>(kTile * k);
      if (w)
        for (int64_t c = 0; c < cols; c++) decode_row(rows + c * k, *w, part, c0 + c);
      turn(t, w ? rows : values + c0 * k, cols, k);
      wf = t;
    }
    for (int64_t r = r0; r < r1; r += kRows) {
      int64_t m = std::min(kRows, r1 - r);
      if (wb) kn.tile_bf16(x + r * ldx + xo, ldx, m, wb, k, out, kTile);
      else kn.tile_f32(x + r * ldx + xo, ldx, m, wf, k, out, kTile);
      for (int64_t i = 0; i < m; i++) store(r + i, c0, out + i * kTile, cols);
    }
  }

  // All columns against rows [0,rows) of part 0.
  template <class Store>
  void run(int64_t rows, Store &&store) const {
    int64_t per = n / groups, tiles = (per + kTile - 1) / kTile, chunks = (rows + kRows - 1) / kRows;
    each(dev, groups * tiles * chunks, k * kTile * std::min(rows, kRows), [&](int64_t i, Arena &s) {
      int64_t chunk = i / (groups * tiles), g = i / tiles % groups, t = i % tiles;
      int64_t c0 = g * per + t * kTile, cols = std::min(kTile, per - t * kTile);
      tile(0, chunk * kRows, std::min(rows, (chunk + 1) * kRows), c0, cols, g * k, s, store);
    });
  }
};

void out_dtype(const di_tensor &y) {
  if (y.dtype != DI_BF16 && y.dtype != kAcc) {
    if (y.dtype == DI_F32 || y.dtype == DI_F64)
      fault(DI_INVALID_ARGUMENT, DI_SCOPE_PROGRAM, "y is %s: this device was opened with accumulate %s", dtype_name(y.dtype), kAcc == DI_F64 ? "float64" : "float32");
    refuse("y is %s, must be BF16 or %s", dtype_name(y.dtype), dtype_name(kAcc));
  }
}

void put(const di_tensor &y, int64_t at, const real *v, int64_t n) {
  if (y.dtype == DI_BF16) narrow(static_cast<uint16_t *>(y.data) + at, v, n);
  else std::memcpy(static_cast<real *>(y.data) + at, v, size_t(n) * sizeof(real));
}

// Rows of x as floats, through the A8 quantiser when group > 0. src(r) gives row r, nullptr = not used.
template <class Src>
const real *load(di_device *dev, int64_t rows, int64_t cols, uint32_t group, Src &&src) {
  real *x = dev->arena.get<real>(rows * cols);
  parallel(dev, rows, group ? 8 * cols : cols / 4, [&](int64_t lo, int64_t hi, Arena &) {
    for (int64_t r = lo; r < hi; r++) {
      const uint16_t *p = src(r);
      if (!p) continue;
      widen(x + r * cols, p, cols);
      if (group) a8_values(x + r * cols, x + r * cols, cols, group);
    }
  });
  return x;
}

void one_part(const di_weight &w) {
  if (w.parts != 1) refuse("weight w%s has %u parts, must have 1", name_of(w).c_str(), w.parts);
}

di_rc gemm(di_device *dev, di_queue *, const di_gemm_args *args, di_fail *f) {
  return device_op(dev, f, [&] {
    const auto a = known(args, "args");
    di_weight w = weight("w", a.w);
    one_part(w);
    int64_t g = a.groups ? a.groups : 1, t = dim(a.x, 0);
    if (w.n % g) refuse("%lld groups do not divide %lld output columns", (long long)g, (long long)w.n);
    shape("x", a.x, DI_BF16, {t, g * w.k});
    out_dtype(a.y);
    shape("y", a.y, a.y.dtype, {t, w.n});
    if (present(a.bias)) flat("bias", a.bias, DI_F32, w.n);
    if (t == 0) return;
    Product p{dev, &w, dev->packed(w), nullptr, w.n, w.k, g};
    p.x = load(dev, t, g * w.k, a.act_group, [&](int64_t r) { return row<uint16_t>(a.x, r); });
    p.ldx = g * w.k;
    const float *bias = static_cast<const float *>(a.bias.data);
    const int64_t ldy = row_stride(a.y);
    p.run(t, [&](int64_t r, int64_t c0, real *v, int64_t cols) {
      if (bias)
        for (int64_t c = 0; c < cols; c++) v[c] += real(bias[c0 + c]);
      put(a.y, r * ldy + c0, v, cols);
    });
  });
}

di_rc gemm_grouped(di_device *dev, di_queue *, const di_gemm_grouped_args *args, di_fail *f) {
  return device_op(dev, f, [&] {
    const auto a = known(args, "args");
    di_weight w = weight("w", a.w);
    int64_t e = w.parts, rows = 0, pitch = 0;
    out_dtype(a.y);
    if (a.layout == DI_GROUPED_CONTIGUOUS) {
      rows = dim(a.x, 0);
      shape("x", a.x, DI_BF16, {rows, w.k});
      shape("y", a.y, a.y.dtype, {rows, w.n});
      flat("offs", a.offs, DI_I32, e + 1);
    } else if (a.layout == DI_GROUPED_MASKED) {
      pitch = dim(a.x, 1);
      rows = e * pitch;
      shape("x", a.x, DI_BF16, {e, pitch, w.k});
      shape("y", a.y, a.y.dtype, {e, pitch, w.n});
      flat("offs", a.offs, DI_I32, e);
    } else {
      refuse("unknown layout %u", a.layout);
    }
    if (rows == 0) return;
    const int32_t *offs = static_cast<const int32_t *>(a.offs.data);
    for (int64_t i = 0; i < (pitch ? e : e + 1); i++) {
      if (pitch && (offs[i] < 0 || offs[i] > pitch)) refuse("offs[%lld] is %d, must be 0 to %lld", (long long)i, offs[i], (long long)pitch);
      if (!pitch && (offs[i] < 0 || offs[i] > rows || (i == 0 ? offs[i] != 0 : offs[i] < offs[i - 1])))
        refuse("offs[%lld] is %d: offsets must start at 0, ascend, and end by %lld", (long long)i, offs[i], (long long)rows);
    }
    auto first = [&](int64_t p) { return pitch ? p * pitch : int64_t(offs[p]); };
    auto last = [&](int64_t p) { return pitch ? p * pitch + offs[p] : int64_t(offs[p + 1]); };
    // One item per column tile of an expert that has rows.
    int64_t tiles = (w.n + kTile - 1) / kTile, used = 0, most = 0;
    int32_t *parts = dev->arena.get<int32_t>(e);
    for (int64_t p = 0; p < e; p++)
      if (last(p) > first(p)) {
        parts[used++] = int32_t(p);
        most = std::max(most, last(p) - first(p));
      }
    Product p{dev, &w, dev->packed(w), nullptr, w.n, w.k, 1};
    const int64_t xs = row_stride(a.x), ys = row_stride(a.y);
    const uint16_t *xd = static_cast<const uint16_t *>(a.x.data);
    p.x = load(dev, rows, w.k, a.act_group, [&](int64_t r) -> const uint16_t * {
      if (!pitch) return r < offs[e] ? xd + r * xs : nullptr;
      return r % pitch < offs[r / pitch] ? xd + r / pitch * xs + r % pitch * w.k : nullptr;
    });
    p.ldx = w.k;
    each(dev, used * tiles, w.k * kTile * most, [&](int64_t i, Arena &s) {
      int64_t part = parts[i / tiles], c0 = i % tiles * kTile;
      p.tile(part, first(part), last(part), c0, std::min(kTile, w.n - c0), 0, s, [&](int64_t r, int64_t c, real *v, int64_t cols) {
        put(a.y, pitch ? r / pitch * ys + r % pitch * w.n + c : r * ys + c, v, cols);
      });
    });
  });
}

di_rc head(di_device *dev, di_queue *, const di_head_args *args, di_fail *f) {
  return device_op(dev, f, [&] {
    const auto a = known(args, "args");
    di_weight w = weight("w", a.w);
    one_part(w);
    int64_t t = dim(a.x, 0), l = t;
    shape("x", a.x, DI_BF16, {t, w.k});
    if (present(a.rows) || (a.rows.rank == 1 && a.rows.dim[0] == 0)) {
      l = dim(a.rows, 0);
      flat("rows", a.rows, DI_I32, l);
    }
    out_dtype(a.y);
    shape("y", a.y, kAcc, {l, w.n});
    if (l == 0) return;
    const int32_t *pick = static_cast<const int32_t *>(a.rows.data);
    for (int64_t i = 0; pick && i < l; i++)
      if (pick[i] < 0 || pick[i] >= t) refuse("rows[%lld] is %d, x has %lld rows", (long long)i, pick[i], (long long)t);
    Product p{dev, &w, dev->packed(w), nullptr, w.n, w.k, 1};
    p.x = load(dev, l, w.k, 0, [&](int64_t r) { return row<uint16_t>(a.x, pick ? pick[r] : r); });
    p.ldx = w.k;
    const int64_t ldy = row_stride(a.y);
    p.run(l, [&](int64_t r, int64_t c0, real *v, int64_t cols) { put(a.y, r * ldy + c0, v, cols); });
  });
}

}  // namespace

const di_gemm_fns SUMS(gemm_fns) = {sizeof(di_gemm_fns), 0, prepare_weight, release_weight, gemm, gemm_grouped, head};

namespace di {

void host_product(di_device *dev, const di_weight *w, const float *values, int64_t n, int64_t k, const real *x, int64_t rows, real *out) {
  di_weight full{};
  if (w) full = known(w, "weight");
  Product p{dev, w ? &full : nullptr, w ? dev->packed(full) : nullptr, values, n, k, 1, x, k};
  p.run(rows, [&](int64_t r, int64_t c0, const real *v, int64_t cols) { std::memcpy(out + r * n + c0, v, size_t(cols) * sizeof(real)); });
}

}  // namespace di
