// The key-value family. Regions are checked against the allocation they lie in before anything is read.
#include "device.h"

using namespace di;

namespace {

struct Record { uint8_t *val, *scale; };

Record record(const di_region &g, int64_t unit, int64_t j) {
  uint8_t *base = static_cast<uint8_t *>(g.base) + unit * g.unit_stride + g.offset;
  int64_t v = record_split(g.format, g.dim, g.rope);
  if (g.planar) return {base + j * v, base + g.rows * v + j * (g.row_bytes - v)};
  return {base + j * g.row_bytes, base + j * g.row_bytes + v};
}

int64_t granule(const di_batch &b, const di_region &g, int64_t seq, int64_t j) { return b.seq_table[seq * b.table_width + j / g.rows]; }

Record entry(const di_batch &b, const di_region &g, int64_t seq, int64_t j) { return record(g, granule(b, g, seq, j), j % g.rows); }

// Units of a region that lie inside its allocation; INT64_MAX when the memory is not this device's, whose size is unknown.
int64_t units(di_device *dev, const char *name, const di_region &g) {
  if (!g.base || g.rows < 1 || g.row_bytes < 1 || g.offset < 0 || g.unit_stride < 0)
    refuse("%s is incomplete: base %p, %d rows of %d bytes, offset %lld, stride %lld", name, g.base, g.rows, g.row_bytes, (long long)g.offset, (long long)g.unit_stride);
  int64_t room = dev->room(g.base);
  if (room < 0) return INT64_MAX;
  int64_t need = g.offset + int64_t(g.rows) * g.row_bytes;
  if (room < need) return 0;
  return g.unit_stride == 0 ? INT64_MAX : (room - need) / g.unit_stride + 1;
}

int64_t region(di_device *dev, const char *name, const di_region &g) {
  const char *p = record_problem(g.format, g.dim, g.rope);
  if (p) refuse("%s format %u of %d values: %s", name, g.format, g.dim, p);
  int64_t want = record_bytes(g.format, g.dim, g.rope);
  if (g.row_bytes != want) refuse("%s rows have %d bytes, the format needs %lld", name, g.row_bytes, (long long)want);
  if (g.ratio < 1) refuse("%s has ratio %d, must be at least 1", name, g.ratio);
  return units(dev, name, g);
}

void slots(const di_batch &b, const char *name, int64_t units) {
  for (int32_t s = 0; s < b.seqs; s++)
    if (b.seq_rows[s] > 0 && b.seq_slot[s] >= units) refuse("sequence %d has state slot %d, %s has %lld", s, b.seq_slot[s], name, (long long)units);
}

// The granule table of every sequence must cover the entries below (pos+1)/ratio of its last row.
void table(const di_batch &b, const di_region &g, int64_t units) {
  if (b.rows == 0) return;
  if (!b.seq_table || b.table_width < 1) refuse("batch lacks its granule table");
  for (int32_t s = 0; s < b.seqs; s++) {
    if (b.seq_rows[s] == 0) continue;
    int64_t entries = (int64_t(b.pos[b.seq_first[s] + b.seq_rows[s] - 1]) + 1) / g.ratio, n = (entries + g.rows - 1) / g.rows;
    if (n > b.table_width) refuse("sequence %d needs %lld granules, its table has %d", s, (long long)n, b.table_width);
    const int32_t *t = b.seq_table + int64_t(s) * b.table_width;
    for (int64_t i = 0; i < n; i++)
      if (t[i] < 0 || t[i] >= units) refuse("sequence %d has granule %d for entries from %lld, the pool has %lld", s, t[i], (long long)(i * g.rows), (long long)units);
  }
}

int64_t speeds(const di_tensor &freq, int64_t d) {
  shape("freq", freq, DI_F32, {-1});
  if (2 * freq.dim[0] > d) refuse("freq rotates %lld of %lld values", (long long)(2 * freq.dim[0]), (long long)d);
  return freq.dim[0];
}

// Rotates the last 2*n values at a position and rounds them to BF16.
void rotate_tail(real *x, int64_t d, int64_t pos, const di_tensor &freq, Arena &s) {
  int64_t n = freq.dim[0];
  float *cs = s.get<float>(n), *sn = s.get<float>(n);
  real *tail = x + d - 2 * n;
  cos_sin(cs, sn, pos, static_cast<const float *>(freq.data), n);
  rotate(tail, cs, sn, n, false);
  for (int64_t i = 0; i < 2 * n; i++) tail[i] = round_bf16(tail[i]);
}

// x holds BF16 values.
void store(const di_batch &b, const di_region &g, int64_t seq, int64_t j, const real *x, Arena &s) {
  Record r = entry(b, g, seq, j);
  float *v = s.get<float>(g.dim);
  for (int32_t i = 0; i < g.dim; i++) v[i] = float(x[i]);
  encode_record(g.format, g.dim, g.rope, r.val, r.scale, v);
}

di_rc kv_store(di_device *dev, di_queue *, const di_kv_store_args *args, di_fail *f) {
  return device_op(dev, f, [&] {
    const auto a = known(args, "args");
    int64_t t = dim(a.rec, 0), n = region(dev, "ring", a.ring);
    shape("rec", a.rec, DI_U8, {t, a.ring.row_bytes});
    di_batch b = row_arrays(a.batch, t);
    seq_arrays(b);
    slots(b, "ring", n);
    int64_t split = record_split(a.ring.format, a.ring.dim, a.ring.rope);
    for (int32_t s = 0; t > 0 && s < b.seqs; s++) {
      int64_t first = b.seq_first[s], end = first + b.seq_rows[s];
      for (int64_t r = std::max(first, end - a.ring.rows); r < end; r++) {
        if (b.pos[r] < b.seq_low[s]) continue;
        Record to = record(a.ring, b.seq_slot[s], b.pos[r] % a.ring.rows);
        const uint8_t *rec = row<uint8_t>(a.rec, r);
        std::memcpy(to.val, rec, size_t(split));
        std::memcpy(to.scale, rec + split, size_t(a.ring.row_bytes - split));
      }
    }
  });
}

di_rc compress(di_device *dev, di_queue *, const di_compress_args *args, di_fail *f) {
  return device_op(dev, f, [&] {
    const auto a = known(args, "args");
    const int64_t t = dim(a.lat, 0), d = dim(a.lat, 1), r = a.ratio, c = a.overlap ? 2 : 1, w = c * d;
    shape("lat", a.lat, DI_BF16, {t, d});
    if (d < 1) refuse("lat has no columns");
    flat("norm", a.norm, DI_F32, d);
    di_batch b = row_arrays(a.batch, t);
    seq_arrays(b);
    if (r < 1 || r > 65536) refuse("ratio is %lld, must be 1 to 65536", (long long)r);
    if (r == 1) {
      shape("k", a.k, DI_BF16, {t, d});
    } else {
      shape("k", a.k, kAcc, {t, w});
      shape("s", a.s, kAcc, {t, w});
      if (present(a.ape)) flat("ape", a.ape, DI_F32, r * w);
      const di_region &g = a.tail;
      int64_t n = units(dev, "tail", g);
      if (g.row_bytes != 2 * w * int64_t(sizeof(real))) refuse("tail has rows of %d bytes, must have %lld numbers", g.row_bytes, (long long)(2 * w));
      if ((uintptr_t(g.base) | uint64_t(g.unit_stride) | uint64_t(g.offset)) % sizeof(real)) refuse("tail rows are not aligned to their numbers");
      if (g.rows < c * r - 1) refuse("tail keeps %d rows, a group reaches back over %lld", g.rows, (long long)(c * r - 1));
      slots(b, "tail", n);
    }
    const bool cached = a.cache.format != DI_REC_NONE;
    if (cached) {
      int64_t n = region(dev, "cache", a.cache);
      speeds(a.freq, d);
      if (a.cache.dim != d || a.cache.ratio != r) refuse("cache holds %d values at ratio %d, latents have %lld at ratio %lld", a.cache.dim, a.cache.ratio, (long long)d, (long long)r);
      table(b, a.cache, n);
    }
    if (t == 0) return;
    real *scores = nullptr;  // [t,w], ape added
    if (r > 1) {
      scores = dev->arena.get<real>(t * w);
      parallel(dev, t, w, [&](int64_t lo, int64_t hi, Arena &) {
        for (int64_t i = lo; i < hi; i++) {
          std::memcpy(scores + i * w, row<real>(a.s, i), size_t(w) * sizeof(real));
          if (!present(a.ape)) continue;
          const float *e = static_cast<const float *>(a.ape.data) + b.pos[i] % r * w;
          for (int64_t q = 0; q < w; q++) scores[i * w + q] += real(e[q]);
        }
      });
    }
    auto tail = [&](int64_t slot, int64_t pos) {
      return reinterpret_cast<real *>(static_cast<char *>(a.tail.base) + slot * a.tail.unit_stride + a.tail.offset + pos % a.tail.rows * a.tail.row_bytes);
    };
    each(dev, t, 4 * d * (r == 1 ? 4 : r * c), [&](int64_t i, Arena &s) {
      int64_t pos = b.pos[i], seq = b.seq[i];
      uint16_t *lat = row<uint16_t>(a.lat, i);
      if ((pos + 1) % r) {
        std::memset(lat, 0, size_t(d) * 2);
        return;
      }
      real *x = s.get<real>(d);
      if (r == 1) {
        widen(x, row<uint16_t>(a.k, i), d);
      } else {
        const int64_t first = b.seq_first[seq], p0 = b.pos[first], back = std::min(c * r, pos + 1);
        real *m = s.get<real>(d), *den = s.get<real>(d);
        // Channels of k (and, by shift, of s) with which position p takes part: of its row in this step or of the tail.
        auto item = [&](int64_t p, const real **k, const real **sc) {
          if (p >= p0) {
            *k = row<real>(a.k, first + p - p0);
            *sc = scores + (first + p - p0) * w;
          } else {
            *k = tail(b.seq_slot[seq], p);
            *sc = *k + w;
          }
          if (a.overlap && p > pos - r) *k += d, *sc += d;  // this group: second half
        };
        const real *k, *sc;
        for (int64_t q = 0; q < d; q++) m[q] = -real(kInf), den[q] = 0, x[q] = 0;
        for (int64_t p = pos - back + 1; p <= pos; p++) {
          item(p, &k, &sc);
          for (int64_t q = 0; q < d; q++) m[q] = sc[q] > m[q] || sc[q] != sc[q] ? sc[q] : m[q];
        }
        for (int64_t p = pos - back + 1; p <= pos; p++) {
          item(p, &k, &sc);
          for (int64_t q = 0; q < d; q++) den[q] += exp_f(sc[q] - m[q]);
        }
        for (int64_t p = pos - back + 1; p <= pos; p++) {
          item(p, &k, &sc);
          for (int64_t q = 0; q < d; q++) x[q] += exp_f(sc[q] - m[q]) / den[q] * k[q];
        }
        for (int64_t q = 0; q < d; q++) x[q] = round_bf16(x[q]);
      }
      rms(x, x, static_cast<const float *>(a.norm.data), d, real(a.eps));
      narrow(lat, x, d);
      if (!cached || pos < b.seq_write[seq]) return;
      widen(x, lat, d);
      rotate_tail(x, d, pos + 1 - r, a.freq, s);
      store(b, a.cache, seq, (pos + 1) / r - 1, x, s);
    });
    for (int32_t q = 0; r > 1 && q < b.seqs; q++) {
      int64_t first = b.seq_first[q], end = first + b.seq_rows[q];
      for (int64_t i = std::max(first, end - a.tail.rows); i < end; i++) {
        real *to = tail(b.seq_slot[q], b.pos[i]);
        std::memcpy(to, row<real>(a.k, i), size_t(w) * sizeof(real));
        std::memcpy(to + w, scores + i * w, size_t(w) * sizeof(real));
      }
    }
  });
}

di_rc index_key(di_device *dev, di_queue *, const di_index_key_args *args, di_fail *f) {
  return device_op(dev, f, [&] {
    const auto a = known(args, "args");
    int64_t t = dim(a.k, 0), d = dim(a.k, 1), n = region(dev, "cache", a.cache), r = a.cache.ratio;
    shape("k", a.k, DI_BF16, {t, d});
    speeds(a.freq, d);
    if (a.cache.dim != d) refuse("cache holds %d values, k has %lld", a.cache.dim, (long long)d);
    if (a.hadamard && (d & (d - 1))) refuse("hadamard needs a power of two, k has %lld values", (long long)d);
    di_batch b = row_arrays(a.batch, t);
    seq_arrays(b);
    table(b, a.cache, n);
    each(dev, t, 32 * d, [&](int64_t i, Arena &s) {
      int64_t pos = b.pos[i], seq = b.seq[i];
      if ((pos + 1) % r || pos < b.seq_write[seq]) return;
      real *x = s.get<real>(d);
      widen(x, row<uint16_t>(a.k, i), d);
      rotate_tail(x, d, pos + 1 - r, a.freq, s);
      if (a.hadamard) {
        hadamard(x, d);
        for (int64_t q = 0; q < d; q++) x[q] = round_bf16(x[q]);
      }
      store(b, a.cache, seq, (pos + 1) / r - 1, x, s);
    });
  });
}

// Writes the indices (or ids) of the n_out highest values in ascending order, then -1. Among equal values the lower index wins; -0 equals 0.
void top_ascending(Arena &s, int32_t *out, int64_t n_out, const real *v, int64_t n, const int32_t *ids) {
  int64_t k = std::min(n_out, n), ties = k, have = 0;
  real thr = 0;
  if (k > 0 && k < n) {
    real *tmp = s.get<real>(n);
    std::copy(v, v + n, tmp);
    thr = kth(tmp, n, k);
    for (int64_t i = 0; i < n; i++) ties -= v[i] > thr;
  }
  for (int64_t i = 0; i < n && have < k; i++) {
    bool take = k == n || v[i] > thr;
    if (!take && v[i] == thr && ties > 0) {
      take = true;
      ties--;
    }
    if (take) out[have++] = ids ? ids[i] : int32_t(i);
  }
  for (; have < n_out; have++) out[have] = -1;
}

// The selection, and the candidate blocks, of one row from the scores of its n visible entries.
void pick(const di_index_select_args &a, int64_t r, real *score, int64_t n, Arena &s) {
  int64_t bs = a.cand_block;
  for (int64_t i = 0; i < n; i++) score[i] = lowest(score[i]);
  if (present(a.cand_out)) {
    int64_t nb = n > 0 ? (n + bs - 1) / bs : 0;
    real *best = s.get<real>(nb);
    for (int64_t q = 0; q < nb; q++) {
      real m = -real(kInf);
      for (int64_t i = q * bs; i < std::min(q * bs + bs, n); i++) m = score[i] > m ? score[i] : m;
      if (a.mode == DI_SCORE_BF16 && m > real(wide(0x7f7f))) m = real(wide(0x7f7f));
      best[q] = m;
    }
    if (nb > 0) best[nb - 1] = real(kInf);
    top_ascending(s, row<int32_t>(a.cand_out, r), a.cand_out.dim[1], best, nb, nullptr);
  }
  int32_t *sel = row<int32_t>(a.sel, r);
  if (!present(a.cand_in)) {
    top_ascending(s, sel, a.top_k, score, n, nullptr);
    return;
  }
  int32_t *ids = s.get<int32_t>(n);
  real *vals = s.get<real>(n);
  int64_t m = 0;
  const int32_t *in = row<int32_t>(a.cand_in, r);
  for (int64_t q = 0; q < a.cand_in.dim[1] && in[q] >= 0; q++)
    for (int64_t i = in[q] * bs; i < std::min(in[q] * bs + bs, n) && m < n; i++) ids[m] = int32_t(i), vals[m++] = score[i];
  top_ascending(s, sel, a.top_k, vals, m, ids);
}

constexpr int64_t kSelectRows = 8;      // rows of a sequence that share one pass over the decoded keys
constexpr int64_t kSelectKeys = 1024;   // keys of one unit of work
constexpr int64_t kScores = int64_t(1) << 24;  // scores held at a time

di_rc index_select(di_device *dev, di_queue *, const di_index_select_args *args, di_fail *f) {
  return device_op(dev, f, [&] {
    const auto a = known(args, "args");
    const int64_t t = dim(a.q, 0), h = dim(a.q, 1), d = dim(a.q, 2), topk = a.top_k, n_units = region(dev, "cache", a.cache), ratio = a.cache.ratio;
    shape("q", a.q, DI_BF16, {t, h, d});
    shape("w", a.w, DI_BF16, {t, h});
    if (topk < 1) refuse("top_k must be at least 1");
    shape("sel", a.sel, DI_I32, {t, topk});
    if (a.cache.dim != d) refuse("cache holds %d values, q has %lld", a.cache.dim, (long long)d);
    if (h < 1 || h > 4096) refuse("q has %lld heads, must have 1 to 4096", (long long)h);
    if (a.mode > DI_SCORE_BF16) refuse("unknown score mode %u", a.mode);
    if ((present(a.cand_in) || present(a.cand_out)) && a.cand_block < 1) refuse("candidate blocks need cand_block of at least 1");
    if (present(a.cand_in)) shape("cand_in", a.cand_in, DI_I32, {t, -1});
    if (present(a.cand_out)) shape("cand_out", a.cand_out, DI_I32, {t, -1});
    di_batch b = row_arrays(a.batch, t);
    seq_arrays(b);
    table(b, a.cache, n_units);
    auto visible = [&](int64_t r) { return (int64_t(b.pos[r]) + 1) / ratio; };
    const bool always = present(a.cand_in) || present(a.cand_out);
    const Kernels &kn = *dev->SUMS(kernels);
    for (int64_t r0 = 0; r0 < t;) {
      if (!always && visible(r0) <= topk) {  // the answer is every visible entry
        int32_t *sel = row<int32_t>(a.sel, r0);
        for (int64_t i = 0; i < topk; i++) sel[i] = i < visible(r0) ? int32_t(i) : -1;
        r0++;
        continue;
      }
      // As many rows as the score buffer takes, in groups of one sequence.
      struct Group { int64_t r0, r1, n, at, unit; };
      int64_t r1 = r0, total = 0, n_units_work = 0, ng = 0;
      Arena::Mark mark = dev->arena.mark();
      Group *groups = dev->arena.get<Group>(t - r0);
      while (r1 < t && (always || visible(r1) > topk)) {
        int64_t e = r1 + 1;
        while (e < t && e - r1 < kSelectRows && b.seq[e] == b.seq[r1]) e++;
        int64_t n = visible(e - 1);
        if (ng > 0 && total + (e - r1) * n > kScores) break;
        groups[ng++] = {r1, e, n, total, n_units_work};
        total += (e - r1) * n;
        n_units_work += (n + kSelectKeys - 1) / kSelectKeys;
        r1 = e;
      }
      real *score = dev->arena.get<real>(total), *qf = dev->arena.get<real>((r1 - r0) * h * d), *wf = dev->arena.get<real>((r1 - r0) * h);
      parallel(dev, r1 - r0, h * d, [&](int64_t lo, int64_t hi, Arena &) {
        for (int64_t r = lo; r < hi; r++) {
          widen(qf + r * h * d, row<uint16_t>(a.q, r0 + r), h * d);
          widen(wf + r * h, row<uint16_t>(a.w, r0 + r), h);
          if (a.mode == DI_SCORE_F32)
            for (int64_t i = 0; i < h; i++) wf[r * h + i] *= real(a.scale);
        }
      });
      each(dev, n_units_work, std::min(kSelectKeys, groups[0].n) * h * d * (groups[0].r1 - groups[0].r0), [&](int64_t u, Arena &s) {
        int64_t gi = 0;
        for (int64_t lo = 0, hi = ng; lo < hi;) {  // the last group that starts at or before u
          int64_t mid = (lo + hi) / 2;
          if (groups[mid].unit <= u) gi = mid, lo = mid + 1;
          else hi = mid;
        }
        const Group &g = groups[gi];
        float *key = s.get<float>(d), *tile = s.get<float>(kTile * d);
        real *out = s.get<real>(h * kTile);
        int64_t e0 = (u - g.unit) * kSelectKeys, e1 = std::min(g.n, e0 + kSelectKeys);
        for (int64_t e = e0; e < e1; e += kTile) {
          int64_t m = std::min(kTile, e1 - e);
          if (m < kTile) std::fill(tile, tile + kTile * d, 0.0f);
          for (int64_t j = 0; j < m; j++) {
            Record rec = entry(b, a.cache, b.seq[g.r0], e + j);
            decode_record(key, a.cache.format, d, a.cache.rope, rec.val, rec.scale);
            for (int64_t q = 0; q < d; q++) tile[q * kTile + j] = key[q];
          }
          for (int64_t r = g.r0; r < g.r1; r++) {
            if (visible(r) <= e) continue;
            kn.tile_f32(qf + (r - r0) * h * d, d, h, tile, d, out, kTile);
            const real *w = wf + (r - r0) * h;
            real *to = score + g.at + (r - g.r0) * g.n + e;
            real sum[4][kTile] = {};
            if (a.mode == DI_SCORE_F32) {
              for (int64_t i = 0; i < h; i++)
                for (int64_t j = 0; j < kTile; j++) {
                  real v = out[i * kTile + j];
                  sum[0][j] += w[i] * (v < 0 ? real(0.0) : v);
                }
            } else {
              for (int64_t i = 0; i < h; i++)
                for (int64_t j = 0; j < kTile; j++) {
                  real v = out[i * kTile + j];
                  v = round_bf16(v < 0 ? real(0.0) : v);
                  sum[i & 3][j] = round_bf16(float(double(w[i]) * double(v) + double(sum[i & 3][j])));  // the product is exact in double
                }
              for (int64_t j = 0; j < kTile; j++) sum[0][j] = round_bf16(round_bf16(sum[0][j] + sum[2][j]) + round_bf16(sum[1][j] + sum[3][j]));
            }
            std::memcpy(to, sum[0], size_t(m) * sizeof(real));
          }
        }
      });
      each(dev, ng, kSelectRows * 8 * groups[0].n, [&](int64_t gi, Arena &s) {
        const Group &g = groups[gi];
        for (int64_t r = g.r0; r < g.r1; r++) {
          s.reset();
          pick(a, r, score + g.at + (r - g.r0) * g.n, visible(r), s);
        }
      });
      dev->arena.rewind(mark);
      r0 = r1;
    }
  });
}

constexpr int64_t kKeyValues = int64_t(1) << 22;  // decoded keys held at a time, each twice

di_rc attention(di_device *dev, const di_attend_args *args, bool block, di_fail *f) {
  return device_op(dev, f, [&] {
    const auto a = known(args, "args");
    const int64_t t = dim(a.q, 0), h = dim(a.q, 1), d = dim(a.q, 2), window = a.window;
    shape("q", a.q, DI_BF16, {t, h, d});
    shape("out", a.out, DI_BF16, {t, h, d});
    if (h < 1 || d < 1) refuse("q has %lld heads of %lld values", (long long)h, (long long)d);
    flat("sink", a.sink, DI_F32, h);
    const int64_t nf = speeds(a.freq, d), ring_units = region(dev, "ring", a.ring);
    shape("rec", a.rec, DI_U8, {t, a.ring.row_bytes});
    if (a.ring.dim != d) refuse("ring holds %d values, q has %lld", a.ring.dim, (long long)d);
    if (window < 1) refuse("window must be at least 1");
    if (a.out_mode > DI_ATTEND_A8) refuse("unknown output mode %u", a.out_mode);
    if (a.ring.rows < window - 1 + (block ? 1 : 0)) refuse("ring of %d rows is below the window %lld", a.ring.rows, (long long)window);
    const bool cached = a.cache.format != DI_REC_NONE;
    int64_t cache_units = 0;
    if (cached) {
      cache_units = region(dev, "cache", a.cache);
      if (a.cache.dim != d) refuse("cache holds %d values, q has %lld", a.cache.dim, (long long)d);
      if (!a.all_visible) shape("sel", a.sel, DI_I32, {t, -1});
    }
    di_batch b = row_arrays(a.batch, t);
    seq_arrays(b);
    slots(b, "ring", ring_units);
    if (cached) table(b, a.cache, cache_units);
    if (t == 0) return;

    struct Row { int64_t from, window, n, sel, at, tile; };  // first window position, window keys, all keys, selected entries, offsets into keys and tiles
    Row *rows = dev->arena.get<Row>(t);
    for (int64_t r = 0; r < t; r++) {
      int64_t seq = b.seq[r], pos = b.pos[r], p0 = b.pos[b.seq_first[seq]], low = b.seq_low[seq], from, to;
      if (block) {
        to = p0 + b.seq_rows[seq] - 1;
        from = std::min(p0, std::max<int64_t>({0, low, p0 - window}));
      } else {
        to = pos;
        from = pos < low ? pos : std::max<int64_t>({0, low, pos - window + 1});
      }
      int64_t n = 0;
      if (cached) {
        int64_t seen = (pos + 1) / a.cache.ratio;
        if (a.all_visible) {
          n = seen;
        } else {
          const int32_t *sel = row<int32_t>(a.sel, r);
          for (; n < a.sel.dim[1] && sel[n] >= 0; n++)
            if (sel[n] >= seen) refuse("row %lld selects entry %d, position %lld sees %lld", (long long)r, sel[n], (long long)pos, (long long)seen);
        }
      }
      rows[r] = {from, to - from + 1, to - from + 1 + n, n, 0, 0};
    }
    const Kernels &kn = *dev->SUMS(kernels);
    const int64_t split = record_split(a.ring.format, d, a.ring.rope);
    const real scale = real(a.scale);
    // Few rows: spread the heads. The split changes who works, never an order of sums.
    const int64_t splits = std::min(h, std::max<int64_t>(1, 4 * dev->pool.size() / t));
    for (int64_t r0 = 0; r0 < t;) {
      int64_t r1 = r0, tiles = 0, most = 0;
      while (r1 < t) {
        int64_t m = (rows[r1].n + kTile - 1) / kTile;
        if (r1 > r0 && (tiles + m) * kTile * d > kKeyValues) break;
        rows[r1].tile = tiles;
        tiles += m;
        most = std::max(most, rows[r1].n);
        r1++;
      }
      Arena::Mark mark = dev->arena.mark();
      float *keys = dev->arena.get<float>(tiles * kTile * d), *turned = dev->arena.get<float>(tiles * kTile * d);
      int32_t *owner = dev->arena.get<int32_t>(tiles);
      for (int64_t r = r0; r < r1; r++) std::fill(owner + rows[r].tile, owner + rows[r].tile + (rows[r].n + kTile - 1) / kTile, int32_t(r));
      each(dev, tiles, 2 * kTile * d, [&](int64_t u, Arena &) {
        int64_t r = owner[u], i0 = (u - rows[r].tile) * kTile, seq = b.seq[r], first = b.seq_first[seq], p0 = b.pos[first];
        const Row &w = rows[r];
        for (int64_t j = 0; j < kTile; j++) {
          float *k = keys + (u * kTile + j) * d, *kt = turned + u * kTile * d + j;
          int64_t i = i0 + j;
          if (i >= w.n) {
            for (int64_t q = 0; q < d; q++) kt[q * kTile] = 0;
            continue;
          }
          if (i < w.window) {
            int64_t p = w.from + i;
            Record rec = p >= p0 ? Record{row<uint8_t>(a.rec, first + p - p0), row<uint8_t>(a.rec, first + p - p0) + split} : record(a.ring, b.seq_slot[seq], p % a.ring.rows);
            decode_record(k, a.ring.format, d, a.ring.rope, rec.val, rec.scale);
          } else {
            int64_t e = i - w.window;
            if (!a.all_visible) e = row<int32_t>(a.sel, r)[e];
            Record rec = entry(b, a.cache, seq, e);
            decode_record(k, a.cache.format, d, a.cache.rope, rec.val, rec.scale);
          }
          for (int64_t q = 0; q < d; q++) kt[q * kTile] = k[q];
        }
      });
      each(dev, (r1 - r0) * splits, 2 * most * h * d / splits, [&](int64_t item, Arena &s) {
        int64_t r = r0 + item / splits, part = item % splits, h0 = part * h / splits, h1 = (part + 1) * h / splits, hn = h1 - h0;
        const Row &w = rows[r];
        int64_t n = w.n, nt = (n + kTile - 1) / kTile, ldp = nt * kTile;
        real *q = s.get<real>(hn * d), *p = s.get<real>(hn * ldp), *acc = s.get<real>(d);
        float *cs = s.get<float>(nf), *sn = s.get<float>(nf);
        cos_sin(cs, sn, b.pos[r], static_cast<const float *>(a.freq.data), nf);
        widen(q, row<uint16_t>(a.q, r) + h0 * d, hn * d);
        for (int64_t u = 0; u < nt; u++) kn.tile_f32(q, d, hn, turned + (w.tile + u) * kTile * d, d, p + u * kTile, ldp);
        uint16_t *out = row<uint16_t>(a.out, r);
        for (int64_t i = 0; i < hn; i++) {
          real *ph = p + i * ldp, m = -real(kInf), den = 0;
          for (int64_t j = 0; j < n; j++) {
            ph[j] *= scale;
            if (ph[j] > m || ph[j] != ph[j]) m = ph[j];
          }
          kn.exps(ph, ph, m, n);
          for (int64_t j = 0; j < n; j++) den += ph[j];
          for (int64_t j = 0; j < n; j++) ph[j] = round_bf16(ph[j]);
          den += exp_f(real(static_cast<const float *>(a.sink.data)[h0 + i]) - m);
          kn.weighted(acc, ph, keys + w.tile * kTile * d, n, d);
          for (int64_t j = 0; j < d; j++) acc[j] /= den;
          real *tail = acc + d - 2 * nf;
          if (a.out_mode == DI_ATTEND_BF16) {
            for (int64_t j = 0; j < d; j++) acc[j] = round_bf16(acc[j]);
            rotate(tail, cs, sn, nf, true);
          } else {
            rotate(tail, cs, sn, nf, true);
            a8_values(acc, acc, d, 32);
          }
          narrow(out + (h0 + i) * d, acc, d);
        }
      });
      dev->arena.rewind(mark);
      r0 = r1;
    }
  });
}

di_rc attend(di_device *dev, di_queue *, const di_attend_args *args, di_fail *f) { return attention(dev, args, false, f); }
di_rc attend_block(di_device *dev, di_queue *, const di_attend_args *args, di_fail *f) { return attention(dev, args, true, f); }

}  // namespace

const di_attention_fns SUMS(attention_fns) = {sizeof(di_attention_fns), 0, kv_store, compress, index_key, index_select, attend, attend_block};
