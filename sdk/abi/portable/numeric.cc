#include "numeric.h"

#include <algorithm>

namespace di {

Tables::Tables() {
  for (int i = 0; i < 256; i++) {
    int e = (i >> 3) & 15, m = i & 7;
    float v = e == 0 ? std::ldexp(float(m), -9) : std::ldexp(1.0f + float(m) / 8, e - 7);
    if ((i & 0x7f) == 0x7f) v = std::numeric_limits<float>::quiet_NaN();
    e4m3[i] = i >= 128 ? -v : v;
  }
  const float mag[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (int i = 0; i < 16; i++) e2m1[i] = i < 8 ? mag[i] : -mag[i - 8];
}
const Tables kTables;

void sin_cos(float angle, float *sin, float *cos) {
  double x = angle;
  if (!(std::fabs(x) <= std::numeric_limits<float>::max())) {
    *sin = *cos = std::numeric_limits<float>::quiet_NaN();
    return;
  }
  if (std::fabs(x) > 2147483648.0) {  // beyond every position: the general reduction of the C library
    *sin = float(std::sin(x));
    *cos = float(std::cos(x));
    return;
  }
  // pi/2 in two parts of 22 bits and a rest: with |n| < 2^31 the first two products and differences are exact.
  const double p1 = 0x1.921fbp+0, p2 = 0x1.5110bp-22, p3 = 0x1.18469898cc517p-44;
  const double magic = 6755399441055744.0;
  double n = x * 0.63661977236758134308 + magic;
  uint64_t quadrant = bits64(n) & 3;
  n -= magic;
  double r = ((x - n * p1) - n * p2) - n * p3;
  double z = r * r;
  double s = -1.0 / 1307674368000.0;
  s = s * z + 1.0 / 6227020800.0;
  s = s * z - 1.0 / 39916800.0;
  s = s * z + 1.0 / 362880.0;
  s = s * z - 1.0 / 5040.0;
  s = s * z + 1.0 / 120.0;
  s = s * z - 1.0 / 6.0;
  s = r + r * z * s;
  double c = 1.0 / 20922789888000.0;
  c = c * z - 1.0 / 87178291200.0;
  c = c * z + 1.0 / 479001600.0;
  c = c * z - 1.0 / 3628800.0;
  c = c * z + 1.0 / 40320.0;
  c = c * z - 1.0 / 720.0;
  c = c * z + 1.0 / 24.0;
  c = c * z - 0.5;
  c = 1.0 + z * c;
  double a = quadrant & 1 ? c : s, b = quadrant & 1 ? s : c;
  *sin = float(quadrant & 2 ? -a : a);
  *cos = float(quadrant == 1 || quadrant == 2 ? -b : b);
}

void cos_sin(float *cs, float *sn, int64_t pos, const float *freq, int64_t n) {
  float p = float(pos);
  for (int64_t i = 0; i < n; i++) sin_cos(p * freq[i], &sn[i], &cs[i]);
}

const char *record_problem(uint32_t format, int64_t dim, int64_t rope) {
  switch (format) {
    case DI_REC_A8_32:
    case DI_REC_F4E8_32:
      if (dim % 32) return "dimension must be a multiple of 32";
      break;
    case DI_REC_F4E4_16:
      if (dim % 16) return "dimension must be a multiple of 16";
      break;
    case DI_REC_A8_64_ROPE:
      if (rope < 0 || rope > dim) return "rotary dimensions must lie within the vector";
      break;
    default:
      return "unknown record format";
  }
  return dim < 1 ? "dimension must be positive" : nullptr;
}

static void pack(uint8_t *dst, const uint8_t *code, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i++) dst[i] = uint8_t(code[2 * i] | code[2 * i + 1] << 4);
}

void encode_record(uint32_t format, int64_t dim, int64_t rope, uint8_t *val, uint8_t *scale, const float *x) {
  uint8_t code[32];
  switch (format) {
    case DI_REC_A8_32:
      for (int64_t g = 0; g * 32 < dim; g++) scale[g] = a8(val + g * 32, x + g * 32, 32);
      break;
    case DI_REC_A8_64_ROPE: {
      int64_t n = dim - rope, g = 0;
      for (; g * 64 < n; g++) scale[g] = a8(val + g * 64, x + g * 64, std::min<int64_t>(64, n - g * 64));
      for (int64_t i = 0; i < rope; i++) {
        uint16_t b = bf16(x[n + i]);
        val[n + 2 * i] = uint8_t(b);
        val[n + 2 * i + 1] = uint8_t(b >> 8);
      }
      std::memset(scale + g, 0, size_t(record_bytes(format, dim, rope) - (n + 2 * rope) - g));
      break;
    }
    case DI_REC_F4E4_16:
      for (int64_t g = 0; g * 16 < dim; g++) {
        scale[g] = f4e4(code, x + g * 16, 16);
        pack(val + g * 8, code, 8);
      }
      break;
    case DI_REC_F4E8_32:
      for (int64_t g = 0; g * 32 < dim; g++) {
        scale[g] = f4e8(code, x + g * 32, 32);
        pack(val + g * 16, code, 16);
      }
      break;
  }
}

static void nibbles(float *y, const uint8_t *val, int64_t bytes, float s) {
  for (int64_t i = 0; i < bytes; i++) {
    y[2 * i] = e2m1(val[i]) * s;
    y[2 * i + 1] = e2m1(val[i] >> 4) * s;
  }
}

void decode_record(float *y, uint32_t format, int64_t dim, int64_t rope, const uint8_t *val, const uint8_t *scale) {
  switch (format) {
    case DI_REC_A8_32:
      for (int64_t g = 0; g * 32 < dim; g++) {
        float s = e8m0(scale[g]);
        for (int64_t i = g * 32; i < g * 32 + 32; i++) y[i] = e4m3(val[i]) * s;
      }
      break;
    case DI_REC_A8_64_ROPE: {
      int64_t n = dim - rope;
      for (int64_t i = 0; i < n; i++) y[i] = e4m3(val[i]) * e8m0(scale[i / 64]);
      for (int64_t i = 0; i < rope; i++) y[n + i] = wide(uint16_t(val[n + 2 * i] | val[n + 2 * i + 1] << 8));
      break;
    }
    case DI_REC_F4E4_16:
      for (int64_t g = 0; g * 16 < dim; g++) nibbles(y + g * 16, val + g * 8, 8, e4m3(scale[g]));
      break;
    case DI_REC_F4E8_32:
      for (int64_t g = 0; g * 32 < dim; g++) nibbles(y + g * 32, val + g * 16, 16, e8m0(scale[g]));
      break;
  }
}

void simulate_record(float *y, const float *x, uint32_t format, int64_t dim, int64_t rope) {
  switch (format) {
    case DI_REC_A8_32:
      a8_values(y, x, dim, 32);
      return;
    case DI_REC_A8_64_ROPE:
      a8_values(y, x, dim - rope, 64);
      if (y != x) std::memcpy(y + dim - rope, x + dim - rope, size_t(rope) * 4);
      return;
  }
  int64_t g = format == DI_REC_F4E8_32 ? 32 : 16;
  uint8_t code[32];
  for (int64_t at = 0; at < dim; at += g) {
    int64_t m = std::min(g, dim - at);
    float s = g == 32 ? e8m0(f4e8(code, x + at, m)) : e4m3(f4e4(code, x + at, m));
    for (int64_t i = 0; i < m; i++) y[at + i] = e2m1(code[i]) * s;
  }
}

}  // namespace di
