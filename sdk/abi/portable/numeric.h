// Number formats, quantisers and element-wise functions of op set 1, shared by every backend that compiles the portable ops in.
//
// Everything here gives the same bits on every machine: plain IEEE operations in a written order (compile with -ffp-contract=off), and
// own exp, log, sin and cos in double, so that no library version or CPU dispatch takes part (gelu alone uses the erf of the C library).
// Functions are static: a file compiled for a newer CPU must not share its copies with one compiled for every CPU. Formulas: di_backend_v1.h.
#ifndef DI_PORTABLE_NUMERIC_H
#define DI_PORTABLE_NUMERIC_H

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "di_backend_v1.h"

// The type of sums and element-wise functions: files that hold ops are compiled twice, with float and with double. Quantisers, angles and stored numbers are the
// same in both. SUMS(name) keeps the two versions of an external name apart.
#ifdef DI_SUMS_F64
typedef double real;
#define SUMS(name) name##_f64
#else
typedef float real;
#define SUMS(name) name##_f32
#endif

namespace di {

constexpr uint32_t kAcc = sizeof(real) == 8 ? DI_F64 : DI_F32;  // dtype of tensors that are not rounded

static inline uint32_t bits(float v) { uint32_t b; std::memcpy(&b, &v, 4); return b; }
static inline float from_bits(uint32_t b) { float v; std::memcpy(&v, &b, 4); return v; }
static inline uint64_t bits64(double v) { uint64_t b; std::memcpy(&b, &v, 8); return b; }
static inline double from_bits64(uint64_t b) { double v; std::memcpy(&v, &b, 8); return v; }

constexpr float kInf = std::numeric_limits<float>::infinity();

// ---- formats ---------------------------------------------------------------------------------------------------

static inline float wide(uint16_t b) { return from_bits(uint32_t(b) << 16); }

// Rounds to bfloat16, nearest even. A NaN stays a NaN.
static inline uint16_t bf16(float x) {
  uint32_t b = bits(x);
  uint32_t nan = (b >> 16) | 0x40;
  uint32_t r = (b + 0x7fff + ((b >> 16) & 1)) >> 16;
  return uint16_t((b & 0x7fffffff) > 0x7f800000 ? nan : r);
}
static inline uint16_t bf16(double x) { return bf16(float(x)); }
static inline float round_bf16(float x) { return wide(bf16(x)); }
static inline float round_bf16(double x) { return wide(bf16(float(x))); }

// UE8M0: 2^(b-127); 0 is 2^-127, 255 is NaN.
static inline float e8m0(uint8_t b) { return from_bits(b == 0 ? 0x00400000u : b == 255 ? 0x7fc00000u : uint32_t(b) << 23); }

// The UE8M0 byte of 2^ceil(log2 t), decided on the FP32 bits; NaN and what lies above the range give 255.
static inline uint8_t pow2ceil_byte(float t) {
  uint32_t b = bits(t), e = (b >> 23) & 0xff;
  if (b & 0x7fffff) e++;
  return uint8_t(e > 255 ? 255 : e);
}

struct Tables {
  float e4m3[256];
  float e2m1[16];
  Tables();
};
extern const Tables kTables;
static inline float e4m3(uint8_t c) { return kTables.e4m3[c]; }
static inline float e2m1(uint8_t c) { return kTables.e2m1[c & 15]; }

// Nearest E4M3 code of v, already limited to +-448, ties to even. NaN gives 0x7f with its sign.
static inline uint8_t e4m3_code(float v) {
  uint32_t b = bits(v);
  uint8_t sign = uint8_t((b >> 24) & 0x80);
  b &= 0x7fffffff;
  if (b > 0x7f800000) return sign | 0x7f;
  if (b >= 0x43e00000) return sign | 0x7e;  // 448
  if (b < 0x3c800000)                       // below 2^-6: multiples of 2^-9. Adding 2^14 lets the FPU round to that grid.
    return sign | uint8_t(bits(from_bits(b) + 16384.0f) - 0x46800000u);
  b += 0x7ffff + ((b >> 20) & 1);
  return sign | uint8_t((b >> 20) - ((127 - 7) << 3));
}

// Nearest E2M1 code, ties to the even code; the sign bit follows v, zeros included.
static inline uint8_t e2m1_code(float v) {
  uint32_t b = bits(v);
  float m = from_bits(b & 0x7fffffff);
  uint8_t c = uint8_t((m > 0.25f) + (m >= 0.75f) + (m > 1.25f) + (m >= 1.75f) + (m > 2.5f) + (m >= 3.5f) + (m > 5.0f));
  return uint8_t((b >> 28) & 8) | c;
}

// Rounds to 10 mantissa bits, nearest even.
static inline float tf32(float x) {
  uint32_t b = bits(x);
  if ((b & 0x7f800000) == 0x7f800000) return x;
  return from_bits((b + 0xfff + ((b >> 13) & 1)) & ~0x1fffu);
}

// ---- element-wise functions ------------------------------------------------------------------------------------

// e^x in double, relative error below 3e-16 over the range a float result needs.
static inline double exp_d(double x) {
  x = x > 130.0 ? 130.0 : x;
  x = x < -150.0 ? -150.0 : x;
  const double magic = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer in the low bits
  double n = x * 1.4426950408889634 + magic;
  int64_t k = int64_t(bits64(n)) - int64_t(bits64(magic));
  n -= magic;
  double r = (x - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;  // ln 2 in a short high and a low part
  double p = 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  return p * from_bits64(uint64_t(k + 1023) << 52);
}
static inline float exp_f(float x) { return float(exp_d(double(x))); }
static inline double exp_f(double x) { return exp_d(x); }

// log(1+f) for f in [sqrt(1/2)-1, sqrt(2)-1], double.
static inline double log1p_small(double f) {
  double s = f / (2.0 + f), z = s * s;
  double p = 1.0 / 23.0;
  p = p * z + 1.0 / 21.0;
  p = p * z + 1.0 / 19.0;
  p = p * z + 1.0 / 17.0;
  p = p * z + 1.0 / 15.0;
  p = p * z + 1.0 / 13.0;
  p = p * z + 1.0 / 11.0;
  p = p * z + 1.0 / 9.0;
  p = p * z + 1.0 / 7.0;
  p = p * z + 1.0 / 5.0;
  p = p * z + 1.0 / 3.0;
  return 2.0 * (s + s * z * p);
}

// Natural logarithm in double of a positive normal number; 0 gives -inf, negative and NaN give NaN.
static inline double log_d(double x) {
  if (!(x > 0)) return x == 0 ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  if (x == std::numeric_limits<double>::infinity()) return x;
  uint64_t b = bits64(x);
  int64_t e = int64_t(b >> 52) - 1023;
  double m = from_bits64((b & 0xfffffffffffffull) | 0x3ff0000000000000ull);
  if (m > 1.4142135623730951) { m *= 0.5; e++; }
  return double(e) * 0.693147180559945309417 + log1p_small(m - 1.0);
}
static inline float log_f(float x) { return float(log_d(double(x))); }
static inline double log_f(double x) { return log_d(x); }

template <class T>
static inline T sqrt_f(T x) { return std::sqrt(x); }
template <class T>
static inline T rsqrt_f(T x) { return T(1) / std::sqrt(x); }  // both steps rounded
template <class T>
static inline T sigmoid_f(T x) { return T(1) / (T(1) + exp_f(-x)); }

// log(1+e^x), x itself above 20.
template <class T>
static inline T softplus_f(T x) {
  if (x > T(20)) return x;
  double e = exp_d(double(x));
  return T(e < 0.41 ? log1p_small(e) : log_d(1.0 + e));
}

// sin and cos of an FP32 angle of any size, rounded to FP32.
void sin_cos(float angle, float *sin, float *cos);

// ---- quantisers ------------------------------------------------------------------------------------------------

template <class T>
static inline T clamp_f(T v, T lim) { return v > lim ? lim : v < -lim ? -lim : v; }

// max(floor, max |x|), NaN when x holds one.
static inline float amax(const float *x, int64_t n, float floor) {
  uint32_t m = bits(floor);  // non-negative floats order like their bits, NaN above infinity
  for (int64_t i = 0; i < n; i++) {
    uint32_t b = bits(x[i]) & 0x7fffffff;
    m = b > m ? b : m;
  }
  return from_bits(m);
}

constexpr float kRecip448 = float(1.0 / 448.0), kRecip6 = float(1.0 / 6.0);

static inline uint8_t a8_scale(const float *x, int64_t n) { return pow2ceil_byte(amax(x, n, 1e-4f) * kRecip448); }

// One A8 group: codes, and the UE8M0 byte as result.
static inline uint8_t a8(uint8_t *code, const float *x, int64_t n) {
  uint8_t b = a8_scale(x, n);
  float s = e8m0(b);
  for (int64_t i = 0; i < n; i++) code[i] = e4m3_code(clamp_f(x[i] / s, 448.0f));
  return b;
}

// Replaces values by their A8 round trip in groups of g; the last group may be shorter. y may equal x.
static inline void a8_values(float *y, const float *x, int64_t n, int64_t g) {
  for (int64_t at = 0; at < n; at += g) {
    int64_t m = n - at < g ? n - at : g;
    float s = e8m0(a8_scale(x + at, m));
    for (int64_t i = at; i < at + m; i++) y[i] = e4m3(e4m3_code(clamp_f(x[i] / s, 448.0f))) * s;
  }
}

// Quantisers work on FP32 values whatever the sums are.
static inline void a8_values(double *y, const double *x, int64_t n, int64_t g) {
  for (int64_t at = 0; at < n; at += g) {
    int64_t m = n - at < g ? n - at : g;
    uint32_t top = bits(1e-4f);
    for (int64_t i = at; i < at + m; i++) {
      uint32_t b = bits(float(x[i])) & 0x7fffffff;
      top = b > top ? b : top;
    }
    float s = e8m0(pow2ceil_byte(from_bits(top) * kRecip448));
    for (int64_t i = at; i < at + m; i++) y[i] = e4m3(e4m3_code(clamp_f(float(x[i]) / s, 448.0f))) * s;
  }
}

static inline uint8_t f4e8(uint8_t *code, const float *x, int64_t n) {
  uint8_t b = pow2ceil_byte(amax(x, n, 0x1.8p-124f) * kRecip6);  // floor 6 * 2^-126
  float s = e8m0(b);
  for (int64_t i = 0; i < n; i++) code[i] = e2m1_code(clamp_f(x[i] / s, 6.0f));
  return b;
}

// Multiplies by the FP32 reciprocal of the E4M3 scale, as production does.
static inline uint8_t f4e4(uint8_t *code, const float *x, int64_t n) {
  float t = amax(x, n, 0x1.8p-7f) * kRecip6;  // floor 6 * 2^-9
  uint8_t b = e4m3_code(t > 448.0f ? 448.0f : t);
  float r = 1.0f / e4m3(b);
  for (int64_t i = 0; i < n; i++) code[i] = e2m1_code(clamp_f(x[i] * r, 6.0f));
  return b;
}

// Bytes of one packed record, 0 for an unknown format.
static inline int64_t record_bytes(uint32_t format, int64_t dim, int64_t rope) {
  switch (format) {
    case DI_REC_A8_32: return dim + dim / 32;
    case DI_REC_A8_64_ROPE: return ((dim - rope) + 2 * rope + (dim - rope + 63) / 64 + 7) / 8 * 8;
    case DI_REC_F4E4_16: return dim / 2 + dim / 16;
    case DI_REC_F4E8_32: return dim / 2 + dim / 32;
  }
  return 0;
}
// Bytes of the values in a record; the rest holds scales and padding.
static inline int64_t record_split(uint32_t format, int64_t dim, int64_t rope) {
  switch (format) {
    case DI_REC_A8_32: return dim;
    case DI_REC_A8_64_ROPE: return dim + rope;
  }
  return dim / 2;
}
// Why dim and rope do not fit a record format, nullptr when they do.
const char *record_problem(uint32_t format, int64_t dim, int64_t rope);
void encode_record(uint32_t format, int64_t dim, int64_t rope, uint8_t *val, uint8_t *scale, const float *x);
void decode_record(float *y, uint32_t format, int64_t dim, int64_t rope, const uint8_t *val, const uint8_t *scale);
// The values after a round trip through a format, for BF16 outputs of quantize; y may equal x. Groups may be cut short at the end.
void simulate_record(float *y, const float *x, uint32_t format, int64_t dim, int64_t rope);

// ---- rotation and sums -----------------------------------------------------------------------------------------

// cos and sin of the FP32 angles pos*freq[i].
void cos_sin(float *cs, float *sn, int64_t pos, const float *freq, int64_t n);

// Turns n interleaved pairs of x, by the conjugate when conj.
template <class T>
static inline void rotate(T *x, const float *cs, const float *sn, int64_t n, bool conj) {
  for (int64_t i = 0; i < n; i++) {
    T c = cs[i], s = conj ? -sn[i] : sn[i], a = x[2 * i], b = x[2 * i + 1];
    x[2 * i] = a * c - b * s;
    x[2 * i + 1] = a * s + b * c;
  }
}

// The Walsh-Hadamard transform in Sylvester order, times n^-0.5.
template <class T>
static inline void hadamard(T *x, int64_t n) {
  for (int64_t h = 1; h < n; h *= 2)
    for (int64_t b = 0; b < n; b += 2 * h)
      for (int64_t i = b; i < b + h; i++) {
        T u = x[i], v = x[i + h];
        x[i] = u + v;
        x[i + h] = u - v;
      }
  T s = T(1.0 / std::sqrt(double(n)));
  for (int64_t i = 0; i < n; i++) x[i] *= s;
}

// Length of the partial sums of a dot product: each block is summed from its first element on, the block sums are added in order.
// Every product uses this order, so it depends on K alone and is the order of the Go reference.
constexpr int64_t kBlock = 64;
template <class T>
static inline T dot(const T *x, const T *w, int64_t n) {
  T sum = 0;
  while (n >= 4 * kBlock) {  // four blocks side by side hide the latency of the chains
    T a = 0, b = 0, c = 0, d = 0;
    for (int64_t i = 0; i < kBlock; i++) {
      a += x[i] * w[i];
      b += x[i + kBlock] * w[i + kBlock];
      c += x[i + 2 * kBlock] * w[i + 2 * kBlock];
      d += x[i + 3 * kBlock] * w[i + 3 * kBlock];
    }
    sum = (((sum + a) + b) + c) + d;
    x += 4 * kBlock, w += 4 * kBlock, n -= 4 * kBlock;
  }
  while (n > 0) {
    int64_t m = n < kBlock ? n : kBlock;
    T a = 0;
    for (int64_t i = 0; i < m; i++) a += x[i] * w[i];
    sum += a;
    x += m, w += m, n -= m;
  }
  return sum;
}

template <class T>
static inline void widen(T *y, const uint16_t *x, int64_t n) { for (int64_t i = 0; i < n; i++) y[i] = wide(x[i]); }
template <class T>
static inline void narrow(uint16_t *y, const T *x, int64_t n) { for (int64_t i = 0; i < n; i++) y[i] = bf16(x[i]); }

// y = w * x * rsqrt(mean(x^2)+eps), w NULL = 1; y may equal x.
template <class T>
static inline void rms(T *y, const T *x, const float *w, int64_t n, T eps) {
  T r = rsqrt_f(dot(x, x, n) / T(n) + eps);
  if (!w) {
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * r;
    return;
  }
  for (int64_t i = 0; i < n; i++) y[i] = x[i] * r * T(w[i]);
}

// NaN below everything else.
template <class T>
static inline T lowest(T x) { return x != x ? -T(kInf) : x; }

// The k-th highest value (k >= 1) of v without NaN, reordering v.
template <class T>
static inline T kth(T *v, int64_t n, int64_t k) {
  std::nth_element(v, v + (k - 1), v + n, [](T a, T b) { return a > b; });
  return v[k - 1];
}

}  // namespace di
#endif
