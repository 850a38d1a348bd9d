// Drawing one token per row: filters, Gumbel maximum and log-probabilities, without any state between calls.
#include "portable.h"

namespace di {

// Philox-4x32-10: four random words of a 64-bit key and a 128-bit counter.
static void philox(uint64_t key, const uint32_t counter[4], uint32_t out[4]) {
  uint32_t k0 = uint32_t(key), k1 = uint32_t(key >> 32), c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
  for (int i = 0; i < 10; i++) {
    uint64_t p0 = uint64_t(0xD2511F53u) * c0, p1 = uint64_t(0xCD9E8D57u) * c2;
    c0 = uint32_t(p1 >> 32) ^ c1 ^ k0;
    c1 = uint32_t(p1);
    c2 = uint32_t(p0 >> 32) ^ c3 ^ k1;
    c3 = uint32_t(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

// u = (x+0.5)*2^-32, at most 1-2^-24; -log(-log(u)) in FP32 steps.
static float gumbel(uint32_t x) {
  float u = (float(x) + 0.5f) * 0x1p-32f;
  u = u > 1.0f - 0x1p-24f ? 1.0f - 0x1p-24f : u;
  float t = -log_f(u);
  return -log_f(t);
}

constexpr float kGumbelMax = 16.7f;  // above every value of gumbel (16.64): an id that cannot win even with it needs no draw
constexpr int64_t kFold = 2048;      // width of the partial sums of a softmax over the vocabulary

template <class T>
static T fold(const T *e, int64_t v) {
  T sum = 0;
  for (int64_t at = 0; at < v; at += kFold) {
    T s = 0;
    for (int64_t i = at; i < std::min(at + kFold, v); i++) s += e[i];
    sum += s;
  }
  return sum;
}

// Drops from z the ids outside the smallest set, by falling probability and rising id, whose FP32 probabilities e/sum(e) reach top_p.
static void nucleus(Arena &a, float *z, const float *e, int64_t v, float top_p) {
  float sum = fold(e, v);
  int32_t *ids = a.get<int32_t>(v);
  float *tmp = a.get<float>(v);
  for (int64_t m = 64;; m *= 16) {  // most draws need few ids: sort the best 64, then 1024, then all, until the sum is reached
    float thr = 0;
    if (m < v) {
      std::copy(e, e + v, tmp);
      thr = kth(tmp, v, m);
    }
    int64_t n = 0;
    for (int64_t i = 0; i < v; i++)
      if (e[i] >= thr) ids[n++] = int32_t(i);
    std::sort(ids, ids + n, [e](int32_t p, int32_t q) { return e[p] != e[q] ? e[p] > e[q] : p < q; });
    float cum = 0;
    for (int64_t j = 0; j < n; j++) {
      cum += e[ids[j]] / sum;
      if (cum >= top_p) {
        float last = e[ids[j]];
        for (int64_t i = 0; i < v; i++)
          if (e[i] < last || (e[i] == last && i > ids[j])) z[i] = -kInf;
        return;
      }
    }
    if (m >= v) return;  // rounding kept the sum below top_p: all stay
  }
}

// Applies the filters and takes the Gumbel maximum, in FP32 whatever the sums are; -1 when no id has a score.
static int64_t draw(Arena &a, const real *logits, int64_t v, const di_sampling &p) {
  float *z = a.get<float>(v);
  for (int64_t i = 0; i < v; i++) z[i] = lowest(float(logits[i]) / p.temperature);
  if (p.top_k > 0 && p.top_k < v) {
    float *tmp = a.get<float>(v);
    std::copy(z, z + v, tmp);
    float thr = kth(tmp, v, p.top_k);
    int64_t k = p.top_k;
    for (int64_t i = 0; i < v; i++) k -= z[i] > thr;
    for (int64_t i = 0; i < v; i++) {  // of the values equal to the threshold the lowest ids stay
      if (z[i] > thr) continue;
      if (z[i] == thr && k > 0) k--;
      else z[i] = -kInf;
    }
  }
  bool cut = p.top_p > 0 && p.top_p < 1;
  if (cut || p.min_p > 0) {
    float top = -kInf, *e = a.get<float>(v);
    for (int64_t i = 0; i < v; i++) top = z[i] > top ? z[i] : top;
    for (int64_t i = 0; i < v; i++) e[i] = lowest(exp_f(z[i] - top));
    if (top > -kInf && cut) nucleus(a, z, e, v, p.top_p);
    if (p.min_p > 0)  // the highest probability belongs to e = 1
      for (int64_t i = 0; i < v; i++)
        if (!(e[i] >= p.min_p)) z[i] = -kInf;
  }
  float best = -kInf;
  int64_t id = -1;
  for (int64_t at = 0; at < v; at += 4) {
    uint32_t r[4];
    bool drawn = false;
    for (int64_t i = at; i < std::min(at + 4, v); i++) {
      if (z[i] == -kInf || z[i] + kGumbelMax < best) continue;
      if (!drawn) {
        const uint32_t counter[4] = {uint32_t(at / 4), uint32_t(p.pos), 0, p.salt};
        philox(p.seed, counter, r);
        drawn = true;
      }
      float s = z[i] + gumbel(r[i - at]);
      if (s > best || id < 0) best = s, id = i;
    }
  }
  return id;
}

// Refuses a bias entry that di_bias does not allow.
static void check_bias(int64_t i, const di_bias &b, int64_t v) {
  int64_t id = b.id < 0 ? ~int64_t(b.id) : b.id;
  if (id >= v) refuse("bias %lld: id %lld, the vocabulary has %lld", (long long)i, (long long)id, (long long)v);
  if (!(b.add < kInf) || (b.id < 0 && !(b.add > 0))) refuse("bias %lld: id %lld: value %g is not usable", (long long)i, (long long)id, double(b.add));
}

// The row's biases and mask applied to a copy of its logits; the logits themselves when it has neither.
static const real *adjust(Arena &s, const real *logits, int64_t v, const di_sample_args &a, const di_sampling &p) {
  if (p.mask == 0 && p.bias_count == 0) return logits;
  real *z = s.get<real>(v);
  std::copy(logits, logits + v, z);
  for (int64_t i = p.bias_first; i < int64_t(p.bias_first) + p.bias_count; i++) {
    const di_bias &b = a.biases[i];
    if (b.id >= 0) z[b.id] += real(b.add);
    else if (z[~b.id] > 0) z[~b.id] /= real(b.add);
    else z[~b.id] *= real(b.add);
  }
  if (p.mask > 0) {
    const uint32_t *m = a.masks + int64_t(p.mask - 1) * a.mask_words;
    for (int64_t i = 0; i < v; i++)
      if (!(m[i >> 5] >> (i & 31) & 1)) z[i] = -real(kInf);
  }
  return z;
}

// The highest value and its lowest id, -1 when none is above minus infinity.
static int64_t argmax(const real *z, int64_t v, real &top) {
  int64_t id = -1;
  top = -real(kInf);
  for (int64_t q = 0; q < v; q++)
    if (z[q] > top) top = z[q], id = q;
  return id;
}

di_rc SUMS(sample)(di_device *dev, di_queue *, const di_sample_args *args, di_fail *f) {
  return guard(f, [&] {
    const auto a = known(args, "args");
    int64_t l = dim(a.logits, 0), v = dim(a.logits, 1), n = a.top_n;
    shape("logits", a.logits, kAcc, {l, v});
    flat("ids", a.ids, DI_I32, l);
    flat("logprob", a.logprob, DI_F32, l);
    if (n > 0) {
      shape("top_ids", a.top_ids, DI_I32, {l, -1});
      shape("top_logprob", a.top_logprob, DI_F32, {l, -1});
      if (l > 0 && (a.top_ids.dim[1] < n || a.top_logprob.dim[1] < n || n > v))
        refuse("top_n is %lld, the outputs have room for %lld and %lld, the vocabulary has %lld", (long long)n, (long long)a.top_ids.dim[1], (long long)a.top_logprob.dim[1], (long long)v);
    }
    if (l == 0) return;
    if (v < 1 || v > INT32_MAX) refuse("logits have %lld columns", (long long)v);
    if (!a.params) refuse("params is absent");
    for (int64_t i = 0; i < l; i++) {
      const di_sampling &p = a.params[i];
      if (p.forced >= v) refuse("row %lld: forced id %d, the vocabulary has %lld", (long long)i, p.forced, (long long)v);
      if (!(p.temperature >= 0) || p.temperature == kInf) refuse("row %lld: temperature %g, must be finite and not negative", (long long)i, double(p.temperature));
      if (!(p.top_p >= 0 && p.top_p <= 1) || !(p.min_p >= 0 && p.min_p <= 1) || p.top_k < 0)
        refuse("row %lld: top_p %g, min_p %g, top_k %d: out of range", (long long)i, double(p.top_p), double(p.min_p), p.top_k);
      if (p.mask < 0 || int64_t(p.mask) > int64_t(a.mask_rows) || (p.mask > 0 && (!a.masks || 32 * int64_t(a.mask_words) < v)))
        refuse("row %lld: mask %d of %u with %u words each for a vocabulary of %lld", (long long)i, p.mask, a.mask_rows, a.mask_words, (long long)v);
      if (p.bias_first < 0 || p.bias_count < 0 || int64_t(p.bias_first) + p.bias_count > int64_t(a.bias_rows) || (p.bias_count > 0 && !a.biases))
        refuse("row %lld: %d biases from %d, the table has %u", (long long)i, p.bias_count, p.bias_first, a.bias_rows);
    }
    for (int64_t i = 0; a.biases && i < int64_t(a.bias_rows); i++) check_bias(i, a.biases[i], v);
    each(dev, l, 8 * v, [&](int64_t i, Arena &s) {
      const di_sampling &p = a.params[i];
      const real *logits = row<real>(a.logits, i);
      real top;
      int64_t id = std::max(argmax(logits, v, top), int64_t(0));
      if (p.forced >= 0) {
        id = p.forced;
      } else {
        const real *z = adjust(s, logits, v, a, p);
        real best;
        if (z != logits) id = argmax(z, v, best);
        if (p.temperature > 0 && id >= 0) {
          int64_t d = draw(s, z, v, p);
          if (d >= 0) id = d;
        }
      }
      static_cast<int32_t *>(a.ids.data)[i] = int32_t(id);
      real *e = s.get<real>(v);
      for (int64_t q = 0; q < v; q++) e[q] = exp_f(logits[q] - top);
      real norm = log_f(fold(e, v));
      static_cast<float *>(a.logprob.data)[i] = float(((id >= 0 ? logits[id] : -real(kInf)) - top) - norm);  // NaN stays NaN without an id
      if (n == 0) return;
      int32_t *ids = row<int32_t>(a.top_ids, i);
      real *val = s.get<real>(n);
      int64_t have = 0;
      for (int64_t q = 0; q < v; q++) {
        real x = lowest(logits[q]);
        if (have == n && !(x > val[n - 1])) continue;
        int64_t at = std::min(have, n - 1);
        for (; at > 0 && x > val[at - 1]; at--) val[at] = val[at - 1], ids[at] = ids[at - 1];
        val[at] = x, ids[at] = int32_t(q);
        have = std::min(have + 1, n);
      }
      for (int64_t q = 0; q < n; q++) row<float>(a.top_logprob, i)[q] = float((val[q] - top) - norm);
    });
  });
}

}  // namespace di
