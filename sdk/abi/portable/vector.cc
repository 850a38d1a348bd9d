// The row-wise ops. Each checks its arguments, then works row by row; formulas stand beside the argument structs in di_backend_v1.h.
#include "portable.h"

namespace di {

#define OP(NAME) static di_rc NAME([[maybe_unused]] di_device *dev, di_queue *, const di_##NAME##_args *args, di_fail *f)
#define BEGIN                      \
  return guard(f, [&] {         \
    const auto a = known(args, "args");
#define END \
  });

OP(embed) {
  BEGIN
  di_weight w = weight("w", a.w);
  int64_t t = dim(a.y, 0), h = w.k, images = 0;
  shape("y", a.y, DI_BF16, {t, -1, h});
  if (present(a.image)) {
    shape("image", a.image, DI_BF16, {-1, h});
    images = a.image.dim[0];
  }
  di_batch b = row_arrays(a.batch, t);
  for (int64_t i = 0; i < t; i++) {
    if (b.image_row && b.image_row[i] >= 0) {
      if (b.image_row[i] >= images) refuse("row %lld shows image row %d of %lld", (long long)i, b.image_row[i], (long long)images);
    } else if (b.token[i] < 0 || b.token[i] >= w.n) {
      refuse("row %lld has token %d, the table has %lld rows", (long long)i, b.token[i], (long long)w.n);
    }
  }
  int64_t hc = a.y.dim[1];
  if (hc == 0) return;
  each(dev, t, 4 * h, [&](int64_t i, Arena &s) {
    uint16_t *y = row<uint16_t>(a.y, i);
    if (b.image_row && b.image_row[i] >= 0) {
      std::memcpy(y, row<uint16_t>(a.image, b.image_row[i]), size_t(h) * 2);
    } else {
      float *v = s.get<float>(h);
      decode_row(v, w, 0, b.token[i]);
      narrow(y, v, h);
    }
    for (int64_t c = 1; c < hc; c++) std::memcpy(y + c * h, y, size_t(h) * 2);
  });
  END
}

OP(rms_norm) {
  BEGIN
  Extent e = rows("x", a.x, DI_BF16);
  same_shape("x", a.x, "y", a.y);
  if (present(a.w)) flat("w", a.w, DI_F32, e.cols);
  const float *w = static_cast<const float *>(a.w.data);
  each(dev, e.rows, 4 * e.cols, [&](int64_t i, Arena &s) {
    real *v = s.get<real>(e.cols);
    widen(v, last_row<uint16_t>(a.x, i), e.cols);
    rms(v, v, w, e.cols, real(a.eps));
    narrow(last_row<uint16_t>(a.y, i), v, e.cols);
  });
  END
}

static int64_t speeds(const di_tensor &freq, int64_t d) {
  shape("freq", freq, DI_F32, {-1});
  if (2 * freq.dim[0] > d) refuse("freq rotates %lld of %lld values", (long long)(2 * freq.dim[0]), (long long)d);
  return freq.dim[0];
}

OP(rope) {
  BEGIN
  rows("x", a.x, DI_BF16);
  same_shape("x", a.x, "y", a.y);
  if (a.x.rank < 2) refuse("x has 1 dimension, must have 2 or 3");
  int64_t t = a.x.dim[0], d = a.x.dim[a.x.rank - 1], w = width(a.x);
  int64_t n = speeds(a.freq, d);
  di_batch b = row_arrays(a.batch, t);
  if (d == 0) return;
  each(dev, t, 4 * w, [&](int64_t i, Arena &s) {
    float *cs = s.get<float>(n), *sn = s.get<float>(n);
    real *v = s.get<real>(2 * n);
    cos_sin(cs, sn, int64_t(b.pos[i]) + (a.ratio > 1 ? 1 - int64_t(a.ratio) : 0), static_cast<const float *>(a.freq.data), n);
    const uint16_t *x = row<uint16_t>(a.x, i);
    uint16_t *y = row<uint16_t>(a.y, i);
    for (int64_t at = 0; at < w; at += d) {
      int64_t cut = at + d - 2 * n;
      if (x != y) std::memmove(y + at, x + at, size_t(d - 2 * n) * 2);
      widen(v, x + cut, 2 * n);
      rotate(v, cs, sn, n, a.conj != 0);
      narrow(y + cut, v, 2 * n);
    }
  });
  END
}

OP(quantize) {
  BEGIN
  Extent e = rows("x", a.x, DI_BF16);
  int64_t rope = a.rope;
  if (a.y.dtype == DI_U8) {
    const char *p = record_problem(a.format, e.cols, rope);
    if (p && e.rows > 0) refuse("format %u of %lld values: %s", a.format, (long long)e.cols, p);
    Extent r = rows("y", a.y, DI_U8);
    int64_t want = record_bytes(a.format, e.cols, rope);
    if (e.rows > 0 && (r.rows != e.rows || r.cols != want))
      refuse("y has %lld records of %lld bytes, must have %lld of %lld", (long long)r.rows, (long long)r.cols, (long long)e.rows, (long long)want);
  } else if (a.y.dtype == DI_BF16) {
    if (a.format < DI_REC_A8_32 || a.format > DI_REC_F4E8_32 || rope > e.cols) refuse("format %u with %lld rotary of %lld values is unknown", a.format, (long long)rope, (long long)e.cols);
    same_shape("x", a.x, "y", a.y);
  } else {
    refuse("y is %s, must be U8 or BF16", dtype_name(a.y.dtype));
  }
  int64_t split = record_split(a.format, e.cols, rope);
  each(dev, e.rows, 8 * e.cols, [&](int64_t i, Arena &s) {
    float *v = s.get<float>(e.cols);
    widen(v, last_row<uint16_t>(a.x, i), e.cols);
    if (a.y.dtype == DI_U8) {
      uint8_t *rec = last_row<uint8_t>(a.y, i);
      encode_record(a.format, e.cols, rope, rec, rec + split, v);
      return;
    }
    simulate_record(v, v, a.format, e.cols, rope);
    narrow(last_row<uint16_t>(a.y, i), v, e.cols);
  });
  END
}

// hadamard names the transform too, so the op has its own name here.
static di_rc hadamard_op(di_device *dev, di_queue *, const di_hadamard_args *args, di_fail *f) {
  BEGIN
  Extent e = rows("x", a.x, DI_BF16);
  same_shape("x", a.x, "y", a.y);
  if (e.cols & (e.cols - 1)) refuse("needs a power of two, x has %lld values", (long long)e.cols);
  each(dev, e.rows, 8 * e.cols, [&](int64_t i, Arena &s) {
    real *v = s.get<real>(e.cols);
    widen(v, last_row<uint16_t>(a.x, i), e.cols);
    hadamard(v, e.cols);
    narrow(last_row<uint16_t>(a.y, i), v, e.cols);
  });
  END
}

constexpr int64_t kMaxStreams = 16;

static void streams(const di_tensor &h, int64_t *t, int64_t *hc, int64_t *d) {
  shape("h", h, DI_BF16, {-1, -1, -1});
  *t = h.dim[0], *hc = h.dim[1], *d = h.dim[2];
  if (*hc < 1 || *hc > kMaxStreams) refuse("h has %lld streams, must have 1 to %lld", (long long)*hc, (long long)kMaxStreams);
  if (*d < 1) refuse("h has streams of 0 values");
}

OP(mhc_mix) {
  BEGIN
  int64_t t, hc, d;
  streams(a.h, &t, &hc, &d);
  int64_t k = hc * d, n = a.head_only ? hc : hc * (hc + 2), scales = a.head_only ? 1 : 3;
  if (!a.head_only) {
    flat("post", a.post, kAcc, t * hc);
    flat("comb", a.comb, kAcc, t * hc * hc);
    if (a.iters < 1 || a.iters > 10000) refuse("iters is %u, must be 1 to 10000", a.iters);
  }
  flat("pre", a.pre, kAcc, t * hc);
  flat("fn", a.fn, DI_F32, n * k);
  flat("base", a.base, DI_F32, n);
  flat("scale", a.scale, DI_F32, scales);
  if (t == 0) return;
  Arena &own = host_arena(dev);
  own.reset();
  const float *fn = static_cast<const float *>(a.fn.data);
  if (a.tf32) {
    float *r = own.get<float>(n * k);
    for (int64_t i = 0; i < n * k; i++) r[i] = tf32(fn[i]);
    fn = r;
  }
  real *z = own.get<real>(t * k), *m = own.get<real>(t * n);
  parallel(dev, t, k, [&](int64_t lo, int64_t hi, Arena &) {
    for (int64_t r = lo; r < hi; r++) widen(z + r * k, row<uint16_t>(a.h, r), k);
  });
  host_product(dev, nullptr, fn, n, k, z, t, m);
  const float *base = static_cast<const float *>(a.base.data), *scale = static_cast<const float *>(a.scale.data);
  const real hc_eps = real(a.hc_eps);
  each(dev, t, 2 * k, [&](int64_t i, Arena &) {
    const real *zi = z + i * k, *mi = m + i * n;
    real r = rsqrt_f(dot(zi, zi, k) / real(k) + real(a.eps));
    real *pre = static_cast<real *>(a.pre.data) + i * hc;
    for (int64_t c = 0; c < hc; c++) pre[c] = sigmoid_f(mi[c] * r * scale[0] + base[c]) + hc_eps;
    if (a.head_only) return;
    real *post = static_cast<real *>(a.post.data) + i * hc, *comb = static_cast<real *>(a.comb.data) + i * hc * hc;
    for (int64_t c = 0; c < hc; c++) post[c] = real(2.0) * sigmoid_f(mi[hc + c] * r * scale[1] + base[hc + c]);
    for (int64_t c = 0; c < hc * hc; c++) comb[c] = mi[2 * hc + c] * r * scale[2] + base[2 * hc + c];
    for (int64_t s = 0; s < hc; s++) {
      real *w = comb + s * hc, top = w[0], sum = 0;
      for (int64_t c = 1; c < hc; c++)
        if (w[c] > top || w[c] != w[c]) top = w[c];
      for (int64_t c = 0; c < hc; c++) {
        w[c] = exp_f(w[c] - top);
        sum += w[c];
      }
      for (int64_t c = 0; c < hc; c++) w[c] = w[c] / sum + hc_eps;
    }
    for (uint32_t it = 0; it < a.iters; it++) {
      for (int64_t s = 0; it > 0 && s < hc; s++) {
        real *w = comb + s * hc, sum = 0;
        for (int64_t c = 0; c < hc; c++) sum += w[c];
        for (int64_t c = 0; c < hc; c++) w[c] /= sum + hc_eps;
      }
      for (int64_t c = 0; c < hc; c++) {
        real sum = 0;
        for (int64_t s = 0; s < hc; s++) sum += comb[s * hc + c];
        for (int64_t s = 0; s < hc; s++) comb[s * hc + c] /= sum + hc_eps;
      }
    }
  });
  END
}

OP(mhc_collapse) {
  BEGIN
  int64_t t, hc, d;
  streams(a.h, &t, &hc, &d);
  shape("x", a.x, DI_BF16, {t, d});
  if (present(a.pre)) flat("pre", a.pre, kAcc, t * hc);
  each(dev, t, 4 * hc * d, [&](int64_t i, Arena &s) {
    const uint16_t *h = row<uint16_t>(a.h, i);
    uint16_t *x = row<uint16_t>(a.x, i);
    if (!present(a.pre)) {
      std::memmove(x, h, size_t(d) * 2);
      return;
    }
    const real *pre = static_cast<const real *>(a.pre.data) + i * hc;
    real *v = s.get<real>(d);
    std::fill(v, v + d, real(0.0));
    for (int64_t c = 0; c < hc; c++)
      for (int64_t q = 0; q < d; q++) v[q] += pre[c] * real(wide(h[c * d + q]));
    narrow(x, v, d);
  });
  END
}

OP(mhc_expand) {
  BEGIN
  int64_t t, hc, d;
  streams(a.h, &t, &hc, &d);
  shape("out", a.out, DI_BF16, {t, hc, d});
  shape("y", a.y, DI_BF16, {t, d});
  flat("post", a.post, kAcc, t * hc);
  flat("comb", a.comb, kAcc, t * hc * hc);
  each(dev, t, 4 * hc * hc * d, [&](int64_t i, Arena &s) {
    const real *post = static_cast<const real *>(a.post.data) + i * hc, *comb = static_cast<const real *>(a.comb.data) + i * hc * hc;
    real *in = s.get<real>(hc * d), *y = s.get<real>(d), *v = s.get<real>(d);  // copies: out may equal h
    widen(in, row<uint16_t>(a.h, i), hc * d);
    widen(y, row<uint16_t>(a.y, i), d);
    uint16_t *out = row<uint16_t>(a.out, i);
    for (int64_t c = 0; c < hc; c++) {
      for (int64_t q = 0; q < d; q++) v[q] = post[c] * y[q];
      for (int64_t e = 0; e < hc; e++) {
        real w = comb[e * hc + c];
        for (int64_t q = 0; q < d; q++) v[q] += w * in[e * d + q];
      }
      narrow(out + c * d, v, d);
    }
  });
  END
}

OP(mhc_mean) {
  BEGIN
  int64_t t, hc, d;
  streams(a.h, &t, &hc, &d);
  shape("x", a.x, DI_BF16, {t, d});
  each(dev, t, 2 * hc * d, [&](int64_t i, Arena &) {
    const uint16_t *h = row<uint16_t>(a.h, i);
    uint16_t *x = row<uint16_t>(a.x, i);
    for (int64_t q = 0; q < d; q++) {
      real s = 0;
      for (int64_t c = 0; c < hc; c++) s += wide(h[c * d + q]);
      x[q] = bf16(s / real(hc));
    }
  });
  END
}

OP(router) {
  BEGIN
  di_weight w = weight("w", a.w);
  int64_t t = dim(a.x, 0), e = w.n, h = w.k, k = a.top_k;
  if (w.parts != 1) refuse("weight w%s has %u parts, must have 1", name_of(w).c_str(), w.parts);
  shape("x", a.x, DI_BF16, {t, h});
  shape("ids", a.ids, DI_I32, {t, k});
  shape("weights", a.weights, kAcc, {t, k});
  if (k < 1 || k > e) refuse("top_k is %lld, must be 1 to %lld experts", (long long)k, (long long)e);
  if (a.temp == 0 || a.temp != a.temp) refuse("temp is %g, must not be zero", a.temp);
  if (present(a.bias)) flat("bias", a.bias, DI_F32, e);
  if (present(a.bias_vl)) flat("bias_vl", a.bias_vl, DI_F32, e);
  if (present(a.counts)) flat("counts", a.counts, DI_I32, e);
  di_batch b = row_arrays(a.batch, t);
  di_weight table{};
  if (a.tid2eid) {
    table = weight("tid2eid", a.tid2eid);
    if ((table.format != DI_W_I64 && table.format != DI_W_I32) || table.k != k)
      refuse("tid2eid has format %u and %lld columns, must be I64 or I32 with %lld", table.format, (long long)table.k, (long long)k);
    for (int64_t i = 0; i < t; i++) {
      if (b.token[i] < 0 || b.token[i] >= table.n) refuse("row %lld has token %d, tid2eid has %lld rows", (long long)i, b.token[i], (long long)table.n);
      for (int64_t s = 0; s < k; s++) {
        int64_t x = int_at(table, b.token[i], s);
        if (x < 0 || x >= e) refuse("tid2eid[%d,%lld] is expert %lld of %lld", b.token[i], (long long)s, (long long)x, (long long)e);
      }
    }
  }
  int32_t *counts = static_cast<int32_t *>(a.counts.data);
  if (counts) std::fill(counts, counts + e, 0);
  if (t == 0) return;
  Arena &own = host_arena(dev);
  own.reset();
  real *x = own.get<real>(t * h), *score = own.get<real>(t * e);
  for (int64_t i = 0; i < t; i++) widen(x + i * h, row<uint16_t>(a.x, i), h);
  host_product(dev, a.w, nullptr, e, h, x, t, score);
  const float *bias = static_cast<const float *>(a.bias.data), *bias_vl = present(a.bias_vl) ? static_cast<const float *>(a.bias_vl.data) : bias;
  const real temp = real(a.temp);
  each(dev, t, 32 * e, [&](int64_t i, Arena &s) {
    real *sc = score + i * e, *sel = s.get<real>(e);
    for (int64_t q = 0; q < e; q++) sc[q] = sqrt_f(softplus_f(sc[q] / temp));
    int32_t *ids = row<int32_t>(a.ids, i);
    if (a.tid2eid) {
      for (int64_t q = 0; q < k; q++) ids[q] = int32_t(int_at(table, b.token[i], q));
    } else {
      const float *bi = b.flag[i] & 1 ? bias_vl : bias;
      for (int64_t q = 0; q < e; q++) sel[q] = lowest(bi ? sc[q] + real(bi[q]) : sc[q]);
      // -inf of a NaN score is still a choice, so what is taken is kept apart from the values.
      uint8_t *taken = s.get<uint8_t>(e);
      std::memset(taken, 0, size_t(e));
      for (int64_t c = 0; c < k; c++) {
        int64_t at = -1;
        for (int64_t q = 0; q < e; q++)
          if (!taken[q] && (at < 0 || sel[q] > sel[at])) at = q;
        taken[at] = 1;
        ids[c] = int32_t(at);
      }
    }
    real sum = 0, *out = row<real>(a.weights, i);
    for (int64_t q = 0; q < k; q++) {
      out[q] = sc[ids[q]];
      sum += out[q];
    }
    for (int64_t q = 0; q < k; q++) out[q] = out[q] / (sum + real(a.denom_eps)) * real(a.scale);
  });
  if (counts)
    for (int64_t i = 0; i < t; i++)
      for (int64_t q = 0; q < k; q++) counts[row<int32_t>(a.ids, i)[q]]++;
  END
}

OP(swiglu) {
  BEGIN
  int64_t r = dim(a.g, 0), n = a.g.rank >= 1 && a.g.rank <= 4 ? width(a.g) : 0;
  shape("g", a.g, DI_BF16, {r, n});
  shape("u", a.u, DI_BF16, {r, n});
  shape("y", a.y, DI_BF16, {r, n});
  if (r > 0 && present(a.weights) != present(a.order)) refuse("weights and order must be given together");
  int64_t total = 0;
  if (r > 0 && present(a.weights)) {
    if (a.weights.rank < 1 || a.weights.rank > 4) refuse("weights has %u dimensions, must have 1 to 4", a.weights.rank);
    total = a.weights.dim[0] * width(a.weights);
    flat("weights", a.weights, kAcc, total);
    flat("order", a.order, DI_I32, r);
  }
  if (a.out_mode > DI_ACT_A8 || (a.out_mode == DI_ACT_A8 && a.act_group < 1)) refuse("output mode %u with groups of %u is unknown", a.out_mode, a.act_group);
  const int32_t *order = static_cast<const int32_t *>(a.order.data);
  const real *weights = static_cast<const real *>(a.weights.data);
  if (order)
    for (int64_t i = 0; i < r; i++)
      if (order[i] < 0 || order[i] >= total) refuse("order[%lld] is %d of %lld weights", (long long)i, order[i], (long long)total);
  const real lim = real(a.limit);
  each(dev, r, 32 * n, [&](int64_t i, Arena &s) {
    const uint16_t *g = row<uint16_t>(a.g, i), *u = row<uint16_t>(a.u, i);
    real *v = s.get<real>(n), w = weights ? weights[order[i]] : real(1.0);
    for (int64_t q = 0; q < n; q++) {
      real x = wide(g[q]), up = wide(u[q]);
      if (lim > 0) {
        x = x > lim ? lim : x;
        up = clamp_f(up, lim);
      }
      v[q] = x / (real(1.0) + exp_f(-x)) * up * w;
    }
    if (a.out_mode == DI_ACT_A8) a8_values(v, v, n, a.act_group);
    narrow(row<uint16_t>(a.y, i), v, n);
  });
  END
}

OP(engram_hash) {
  BEGIN
  di_weight map = weight("map", a.map);
  if (map.format != DI_W_I32 && map.format != DI_W_I64) refuse("map has format %u, must be I32 or I64", map.format);
  int64_t v = map.n * map.k, t = dim(a.ids, 0), cols = dim(a.ids, 1), orders = dim(a.mult, 0), heads = a.heads;
  shape("mult", a.mult, DI_I64, {orders});
  shape("prime", a.prime, DI_I64, {cols});
  shape("ids", a.ids, DI_I32, {t, cols});
  if (orders < 2 || orders > 8 || heads < 1 || cols != (orders - 1) * heads)
    refuse("%lld columns do not follow from %lld heads and orders 2 to %lld", (long long)cols, (long long)heads, (long long)orders);
  if (int64_t(a.pad_id) >= v) refuse("pad id %u is outside the map of %lld", a.pad_id, (long long)v);
  di_batch b = row_arrays(a.batch, t);
  seq_arrays(b);
  if (t == 0) return;
  if (b.n_hist < 0 || (b.n_hist > 0 && (!b.hist || !b.hist_flag))) refuse("batch lacks its %d preceding tokens", b.n_hist);
  const int64_t *prime = static_cast<const int64_t *>(a.prime.data), *mult = static_cast<const int64_t *>(a.mult.data);
  for (int64_t i = 0; i < cols; i++)
    if (prime[i] < 1) refuse("prime[%lld] is %lld", (long long)i, (long long)prime[i]);
  for (int64_t i = 0; i < t; i++)
    if (b.token[i] < 0 || b.token[i] >= v) refuse("row %lld has token %d, the map has %lld entries", (long long)i, b.token[i], (long long)v);
  for (int64_t i = 0; i < int64_t(b.seqs) * b.n_hist; i++)
    if (!(b.hist_flag[i] & 3) && (b.hist[i] < 0 || b.hist[i] >= v)) refuse("preceding token %lld is %d, the map has %lld entries", (long long)i, b.hist[i], (long long)v);
  const int64_t pad = int_at(map, 0, a.pad_id);
  each(dev, t, 8 * cols, [&](int64_t i, Arena &) {
    int64_t seq = b.seq[i], first = b.seq_first[seq], nh = b.n_hist;
    uint64_t x[8], acc = 0;
    bool blocked = false;
    for (int64_t s = 0; s < orders; s++) {
      int32_t id = 0;
      bool dead = true;
      int64_t at = i - s, h = nh - (first - at);
      if (at >= first) {
        id = b.token[at];
        dead = b.flag[at] & 1;
      } else if (h >= 0) {
        id = b.hist[seq * nh + h];
        dead = b.hist_flag[seq * nh + h] & 3;
      }
      blocked = blocked || dead;
      acc ^= uint64_t(blocked ? pad : int_at(map, 0, id)) * uint64_t(mult[s]);
      x[s] = acc;
    }
    int64_t off = 0;
    int32_t *out = row<int32_t>(a.ids, i);
    for (int64_t c = 0; c < cols; c++) {
      int64_t m = int64_t(x[c / heads + 1]) % prime[c];
      if (m < 0) m += prime[c];
      out[c] = int32_t(m + off);
      off += prime[c];
    }
  });
  END
}

OP(engram_mix) {
  BEGIN
  int64_t t, hc, d;
  streams(a.h, &t, &hc, &d);
  shape("out", a.out, DI_BF16, {t, hc, d});
  shape("kv", a.kv, DI_BF16, {t, (hc + 1) * d});
  flat("q_weight", a.q_weight, DI_F32, hc * d);
  flat("k_weight", a.k_weight, DI_F32, hc * d);
  if (present(a.gate)) flat("gate", a.gate, kAcc, t * hc);
  di_batch b = row_arrays(a.batch, t);
  if (t == 0) return;
  Arena &own = host_arena(dev);
  own.reset();
  real *w = own.get<real>(hc * d);
  for (int64_t i = 0; i < hc * d; i++) w[i] = real(static_cast<const float *>(a.q_weight.data)[i]) * real(static_cast<const float *>(a.k_weight.data)[i]);
  const real eps = real(a.eps), root = real(1.0 / std::sqrt(double(d)));
  each(dev, t, 8 * hc * d, [&](int64_t i, Arena &s) {
    const uint16_t *h = row<uint16_t>(a.h, i), *kv = row<uint16_t>(a.kv, i);
    uint16_t *out = row<uint16_t>(a.out, i);
    real *hs = s.get<real>(d), *key = s.get<real>(d), *hw = s.get<real>(d), *value = s.get<real>(d);
    widen(value, kv + hc * d, d);
    for (int64_t c = 0; c < hc; c++) {
      widen(hs, h + c * d, d);
      widen(key, kv + c * d, d);
      for (int64_t q = 0; q < d; q++) hw[q] = hs[q] * w[c * d + q];
      real v = dot(hw, key, d) * rsqrt_f(dot(hs, hs, d) / real(d) + eps) * rsqrt_f(dot(key, key, d) / real(d) + eps) * root;
      real mag = std::fabs(v);
      if (mag < 1e-6f) mag = 1e-6f;
      real g = b.flag[i] & 1 ? real(0.0) : sigmoid_f(std::copysign(sqrt_f(mag), v));
      if (present(a.gate)) static_cast<real *>(a.gate.data)[i * hc + c] = g;
      for (int64_t q = 0; q < d; q++) out[c * d + q] = bf16(hs[q] + g * value[q]);
    }
  });
  END
}

OP(markov) {
  BEGIN
  di_weight embed = weight("embed", a.embed), head = weight("head", a.head);
  int64_t s = dim(a.prev, 0), v = head.n, k = head.k;
  if (embed.k != k) refuse("embed has %lld columns, head %lld: must be equal", (long long)embed.k, (long long)k);
  if (head.parts != 1) refuse("weight head%s has %u parts, must have 1", name_of(head).c_str(), head.parts);
  shape("prev", a.prev, DI_I32, {s});
  shape("base", a.base, kAcc, {s, v});
  shape("logits", a.logits, kAcc, {s, v});
  shape("e", a.e, DI_BF16, {s, k});
  if (s == 0) return;
  const int32_t *prev = row<int32_t>(a.prev, 0);
  for (int64_t i = 0; i < s; i++)
    if (prev[i * row_stride(a.prev)] < 0 || prev[i * row_stride(a.prev)] >= embed.n)
      refuse("prev[%lld] is token %d of %lld", (long long)i, prev[i * row_stride(a.prev)], (long long)embed.n);
  Arena &own = host_arena(dev);
  own.reset();
  real *x = own.get<real>(s * k), *out = own.get<real>(s * v);
  float *e = own.get<float>(k);
  for (int64_t i = 0; i < s; i++) {
    decode_row(e, embed, 0, prev[i * row_stride(a.prev)]);
    narrow(row<uint16_t>(a.e, i), e, k);
    widen(x + i * k, row<uint16_t>(a.e, i), k);
  }
  host_product(dev, a.head, nullptr, v, k, x, s, out);
  for (int64_t i = 0; i < s; i++) {
    const real *base = row<real>(a.base, i);
    real *y = row<real>(a.logits, i);
    for (int64_t q = 0; q < v; q++) y[q] = base[q] + out[i * v + q];
  }
  END
}

OP(confidence) {
  BEGIN
  di_weight w = weight("w", a.w);
  int64_t s = dim(a.x, 0), h = dim(a.x, 1), k = dim(a.e, 1);
  shape("x", a.x, DI_BF16, {s, h});
  shape("e", a.e, DI_BF16, {s, k});
  flat("conf", a.conf, kAcc, s);
  if (w.n != 1 || w.k != h + k) refuse("weight w%s is %lldx%lld, must be 1x%lld", name_of(w).c_str(), (long long)w.n, (long long)w.k, (long long)(h + k));
  if (s == 0) return;
  Arena &own = host_arena(dev);
  own.reset();
  float *stored = own.get<float>(h + k);
  real *wv = own.get<real>(h + k), *x = own.get<real>(h + k);
  decode_row(stored, w, 0, 0);
  std::copy(stored, stored + h + k, wv);
  for (int64_t i = 0; i < s; i++) {
    widen(x, row<uint16_t>(a.x, i), h);
    widen(x + h, row<uint16_t>(a.e, i), k);
    static_cast<real *>(a.conf.data)[i] = dot(x, wv, h + k);
  }
  END
}

OP(verify) {
  BEGIN
  int64_t s = dim(a.draft, 0), d = dim(a.draft, 1), n = dim(a.ids, 0);
  flat("ids", a.ids, DI_I32, n);
  shape("draft", a.draft, DI_I32, {s, d});
  flat("count", a.count, DI_I32, s);
  flat("first", a.first, DI_I32, s);
  flat("accepted", a.accepted, DI_I32, s);
  const int32_t *ids = static_cast<const int32_t *>(a.ids.data), *first = static_cast<const int32_t *>(a.first.data), *count = static_cast<const int32_t *>(a.count.data);
  for (int64_t i = 0; i < s; i++)
    if (count[i] < 0 || count[i] > d || first[i] < 0 || int64_t(first[i]) + count[i] > n)
      refuse("sequence %lld verifies %d drafts of %lld from row %d of %lld", (long long)i, count[i], (long long)d, first[i], (long long)n);
  for (int64_t i = 0; i < s; i++) {
    const int32_t *draft = row<int32_t>(a.draft, i);
    int32_t k = 0;
    while (k < count[i] && draft[k] == ids[first[i] + k]) k++;
    static_cast<int32_t *>(a.accepted.data)[i] = k;
  }
  END
}

OP(copy) {
  BEGIN
  if (!present(a.index) && !(a.index.rank == 1 && a.index.dim[0] == 0)) {
    same_shape("x", a.x, "y", a.y);
    for (int64_t i = 0; i < a.x.dim[0]; i++) copy_row(a.y, i, a.x, i);
    return;
  }
  int64_t n = a.index.dim[0];
  flat("index", a.index, DI_I32, n);
  if (!elem_bytes(a.x.dtype) || a.x.dtype != a.y.dtype || a.x.rank != a.y.rank)
    refuse("x is %s of rank %u, y %s of rank %u: must be equal", dtype_name(a.x.dtype), a.x.rank, dtype_name(a.y.dtype), a.y.rank);
  rows("x", a.x, a.x.dtype);
  rows("y", a.y, a.y.dtype);
  if (width(a.x) != width(a.y) || a.y.dim[0] != n) refuse("y has %lld rows of %lld, must have %lld of %lld", (long long)a.y.dim[0], (long long)width(a.y), (long long)n, (long long)width(a.x));
  const int32_t *index = static_cast<const int32_t *>(a.index.data);
  for (int64_t i = 0; i < n; i++)
    if (index[i] < 0 || index[i] >= a.x.dim[0]) refuse("index[%lld] is row %d of %lld", (long long)i, index[i], (long long)a.x.dim[0]);
  for (int64_t i = 0; i < n; i++) copy_row(a.y, i, a.x, index[i]);
  END
}

OP(cast) {
  BEGIN
  auto is_float = [](uint32_t d) { return d == DI_BF16 || d == DI_F32 || d == DI_F64; };
  if (!is_float(a.x.dtype) || !is_float(a.y.dtype)) refuse("x is %s, y %s: must be BF16, F32 or F64", dtype_name(a.x.dtype), dtype_name(a.y.dtype));
  Extent x = rows("x", a.x, a.x.dtype), y = rows("y", a.y, a.y.dtype);
  if (x.rows != y.rows || x.cols != y.cols) refuse("x has %lld rows of %lld, y %lld of %lld: must be equal", (long long)x.rows, (long long)x.cols, (long long)y.rows, (long long)y.cols);
  each(dev, x.rows, 2 * x.cols, [&](int64_t i, Arena &) {
    for (int64_t q = 0; q < x.cols; q++) {
      double v = a.x.dtype == DI_BF16 ? double(wide(last_row<uint16_t>(a.x, i)[q])) : a.x.dtype == DI_F32 ? double(last_row<float>(a.x, i)[q]) : last_row<double>(a.x, i)[q];
      if (a.y.dtype == DI_BF16) last_row<uint16_t>(a.y, i)[q] = bf16(float(v));
      else if (a.y.dtype == DI_F32) last_row<float>(a.y, i)[q] = float(v);
      else last_row<double>(a.y, i)[q] = v;
    }
  });
  END
}

OP(add) {
  BEGIN
  Extent e = rows("a", a.a, DI_BF16);
  same_shape("a", a.a, "b", a.b);
  same_shape("a", a.a, "y", a.y);
  each(dev, e.rows, e.cols, [&](int64_t i, Arena &) {
    const uint16_t *p = last_row<uint16_t>(a.a, i), *q = last_row<uint16_t>(a.b, i);
    uint16_t *y = last_row<uint16_t>(a.y, i);
    for (int64_t c = 0; c < e.cols; c++) y[c] = bf16(real(wide(p[c])) + real(wide(q[c])));
  });
  END
}

OP(gelu) {
  BEGIN
  Extent e = rows("x", a.x, DI_BF16);
  same_shape("x", a.x, "y", a.y);
  each(dev, e.rows, 32 * e.cols, [&](int64_t i, Arena &) {
    const uint16_t *p = last_row<uint16_t>(a.x, i);
    uint16_t *y = last_row<uint16_t>(a.y, i);
    for (int64_t c = 0; c < e.cols; c++) {
      double x = wide(p[c]);
      y[c] = bf16(float(0.5 * x * (1.0 + std::erf(x / 1.4142135623730951))));
    }
  });
  END
}

OP(vision_attend) {
  BEGIN
  if (uint64_t(a.grid_h) * a.grid_w > (1u << 24)) refuse("a grid of %ux%u patches is too large", a.grid_h, a.grid_w);
  int64_t n = int64_t(a.grid_h) * a.grid_w, heads = a.heads, d = dim(a.out, 1);
  shape("out", a.out, DI_BF16, {n, d});
  shape("qkv", a.qkv, DI_BF16, {n, 3 * d});
  if (heads < 1 || d < 1 || d % heads || d / heads % 4) refuse("%lld heads do not divide %lld values into heads of a multiple of 4", (long long)heads, (long long)d);
  int64_t hd = d / heads, nf = hd / 4;
  shape("freq", a.freq, DI_F32, {nf});
  if (n == 0) return;
  Arena &own = host_arena(dev);
  own.reset();
  // q and v by head [heads,n,hd]; k turned round [heads,hd,n], so that the score loop runs along the keys.
  real *q = own.get<real>(n * d), *kt = own.get<real>(n * d), *v = own.get<real>(n * d);
  const float *freq = static_cast<const float *>(a.freq.data);
  each(dev, n, 16 * d, [&](int64_t r, Arena &s) {
    float *cs = s.get<float>(2 * nf), *sn = s.get<float>(2 * nf);
    real *tmp = s.get<real>(hd);
    cos_sin(cs, sn, r / a.grid_w, freq, nf);
    cos_sin(cs + nf, sn + nf, r % a.grid_w, freq, nf);
    const uint16_t *src = row<uint16_t>(a.qkv, r);
    for (int64_t h = 0; h < heads; h++) {
      for (int p = 0; p < 2; p++) {
        widen(tmp, src + p * d + h * hd, hd);
        for (int64_t i = 0; i < 2 * nf; i++) {
          real u = tmp[i], w = tmp[i + hd / 2];
          tmp[i] = round_bf16(u * cs[i] - w * sn[i]);
          tmp[i + hd / 2] = round_bf16(w * cs[i] + u * sn[i]);
        }
        for (int64_t i = 0; i < hd; i++) (p ? kt[(h * hd + i) * n + r] : q[(h * n + r) * hd + i]) = tmp[i];
      }
      widen(v + (h * n + r) * hd, src + 2 * d + h * hd, hd);
    }
  });
  const real scale = real(1.0 / std::sqrt(double(hd)));
  each(dev, heads * n, 2 * n * hd, [&](int64_t item, Arena &s) {
    int64_t h = item / n, r = item % n;
    const real *qi = q + (h * n + r) * hd, *k = kt + h * hd * n, *vi = v + h * n * hd;
    real *p = s.get<real>(n), *part = s.get<real>(n), *acc = s.get<real>(hd);
    std::fill(p, p + n, real(0.0));
    for (int64_t at = 0; at < hd; at += kBlock) {
      std::fill(part, part + n, real(0.0));
      for (int64_t i = at; i < std::min(at + kBlock, hd); i++)
        for (int64_t t = 0; t < n; t++) part[t] += qi[i] * k[i * n + t];
      for (int64_t t = 0; t < n; t++) p[t] += part[t];
    }
    real m = -real(kInf), den = 0;
    for (int64_t t = 0; t < n; t++) {
      p[t] *= scale;
      if (p[t] > m || p[t] != p[t]) m = p[t];
    }
    for (int64_t t = 0; t < n; t++) p[t] = exp_f(p[t] - m);
    for (int64_t t = 0; t < n; t++) den += p[t];
    std::fill(acc, acc + hd, real(0.0));
    for (int64_t t = 0; t < n; t++) {
      real w = p[t] / den;
      for (int64_t i = 0; i < hd; i++) acc[i] += w * vi[t * hd + i];
    }
    narrow(row<uint16_t>(a.out, r) + h * hd, acc, hd);
  });
  END
}

OP(vision_merge) {
  BEGIN
  int64_t r = a.r, gh = a.grid_h, gw = a.grid_w, d = dim(a.x, 1);
  if (r < 1 || r > 64) refuse("cell size is %lld, must be 1 to 64", (long long)r);
  if (uint64_t(gh) * uint64_t(gw) > (1u << 24)) refuse("a grid of %lldx%lld patches is too large", (long long)gh, (long long)gw);
  int64_t nh = (gh + r - 1) / r, nw = (gw + r - 1) / r;
  shape("x", a.x, DI_BF16, {gh * gw, d});
  shape("y", a.y, DI_BF16, {nh * nw, d * r * r});
  each(dev, nh * nw, d * r * r, [&](int64_t cell, Arena &) {
    uint16_t *y = row<uint16_t>(a.y, cell);
    std::memset(y, 0, size_t(d * r * r) * 2);
    for (int64_t ky = 0; ky < r; ky++)
      for (int64_t kx = 0; kx < r; kx++) {
        int64_t py = cell / nw * r + ky, px = cell % nw * r + kx;
        if (py >= gh || px >= gw) continue;
        const uint16_t *x = row<uint16_t>(a.x, py * gw + px);
        for (int64_t q = 0; q < d; q++) y[q * r * r + ky * r + kx] = x[q];
      }
  });
  END
}

di_rc SUMS(sample)(di_device *, di_queue *, const di_sample_args *, di_fail *);  // sample.cc

static di_vector_fns table() {
  di_vector_fns t{};
  t.size = sizeof t;
#define SET(NAME) t.NAME = NAME
  SET(embed); SET(rms_norm); SET(rope); SET(quantize); SET(mhc_mix); SET(mhc_collapse); SET(mhc_expand); SET(mhc_mean); SET(router); SET(swiglu);
  SET(engram_hash); SET(engram_mix); SET(markov); SET(confidence); SET(verify); SET(copy); SET(cast); SET(add); SET(gelu);
  SET(vision_attend); SET(vision_merge);
#undef SET
  t.hadamard = hadamard_op;
  t.sample = SUMS(sample);
  return t;
}

const di_vector_fns &vector_ops() {
  static const di_vector_fns t = table();
  return t;
}

}  // namespace di
