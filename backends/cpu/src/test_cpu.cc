// Drives the library through its C ABI alone, as a third-party host would: make -C backends/cpu test runs it plain and under the sanitisers.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "di_backend_v1.h"
#include "kernel.h"
#include "numeric.h"
#include "pool.h"

static int failures = 0;
#define CHECK(COND, ...)                                  \
  do {                                                    \
    if (!(COND)) {                                        \
      failures++;                                         \
      std::printf("%s:%d: %s: ", __FILE__, __LINE__, #COND); \
      std::printf(__VA_ARGS__);                           \
      std::printf("\n");                                  \
    }                                                     \
  } while (0)

namespace {

struct Failure {
  di_fail f{};
  char buf[512];
  Failure() {
    f.size = sizeof f;
    f.msg = buf;
    f.msg_cap = sizeof buf;
  }
  std::string text() const { return std::string(buf, f.msg_len); }
  operator di_fail *() { return &f; }
};

template <class T>
T args() {
  T t;
  std::memset(static_cast<void *>(&t), 0, sizeof t);
  t.size = sizeof t;
  return t;
}

di_tensor tensor(void *p, uint32_t dtype, std::vector<int64_t> d) {
  di_tensor t;
  std::memset(&t, 0, sizeof t);
  t.data = p;
  t.dtype = dtype;
  t.rank = uint32_t(d.size());
  for (size_t i = 0; i < d.size(); i++) t.dim[i] = d[i];
  return t;
}

uint32_t state = 1;
uint32_t rnd() {
  state = state * 1664525u + 1013904223u;
  return state >> 8;
}
float gauss() {
  float s = 0;
  for (int i = 0; i < 12; i++) s += float(rnd()) / float(1 << 24);
  return s - 6;
}

di_backend b;
di_device *dev;
di_queue *queue;

template <class T>
T *alloc(int64_t n) {
  void *p = nullptr;
  Failure f;
  CHECK(b.memory->alloc(dev, uint64_t(n) * sizeof(T), &p, f) == DI_OK, "%s", f.text().c_str());
  CHECK(uintptr_t(p) % 64 == 0, "%p", p);
  return static_cast<T *>(p);
}

void entry_rules() {
  Failure f;
  di_host host = args<di_host>();
  CHECK(di_backend_v1(nullptr, &b, f) == DI_INVALID_ARGUMENT && f.f.scope == DI_SCOPE_STEP, "%s", f.text().c_str());
  CHECK(di_backend_v1(&host, nullptr, f) == DI_INVALID_ARGUMENT, "%s", f.text().c_str());
  std::memset(static_cast<void *>(&b), 0xff, sizeof b);
  b.size = 40;  // a host that knows nothing after op_set
  CHECK(di_backend_v1(&host, &b, f) == DI_OK, "%s", f.text().c_str());
  CHECK(uintptr_t(b.device) == ~uintptr_t(0), "bytes past the caller's size were written");
  CHECK(std::string(b.name.ptr, b.name.len) == "cpu", "%s", b.name.ptr);
  b = args<di_backend>();
  CHECK(di_backend_v1(&host, &b, f) == DI_OK, "%s", f.text().c_str());
  di_device_info info = args<di_device_info>();
  info.size = 16;
  std::memset(info.name, 7, sizeof info.name);
  CHECK(b.device->info(0, &info, f) == DI_OK && info.name[8] == 7, "a short info was overrun");
  // No buffer, no fail struct: only the code.
  CHECK(b.device->info(9, &info, nullptr) == DI_INVALID_ARGUMENT, "device 9");
}

void shorter_args_read_as_zero() {
  const int n = 16, k = 64;
  std::vector<uint16_t> w(n * k, 0x3f80);
  const void *data[1] = {w.data()};
  di_weight weight = args<di_weight>();
  weight.format = DI_W_BF16, weight.parts = 1, weight.n = n, weight.k = k, weight.data = data;
  uint16_t *x = alloc<uint16_t>(k);
  float *y = alloc<float>(n), *bias = alloc<float>(n);
  for (int i = 0; i < k; i++) x[i] = 0x3f80;
  for (int i = 0; i < n; i++) bias[i] = 1000;
  di_gemm_args a = args<di_gemm_args>();
  a.w = &weight, a.x = tensor(x, DI_BF16, {1, k}), a.y = tensor(y, DI_F32, {1, n}), a.bias = tensor(bias, DI_F32, {n});
  Failure f;
  CHECK(b.gemm->gemm(dev, queue, &a, f) == DI_OK && y[3] == k + 1000, "%g %s", y[3], f.text().c_str());
  a.size = offsetof(di_gemm_args, bias);
  CHECK(b.gemm->gemm(dev, queue, &a, f) == DI_OK && y[3] == k, "%g %s", y[3], f.text().c_str());
  weight.size = offsetof(di_weight, prepared);
  CHECK(b.gemm->gemm(dev, queue, &a, f) == DI_OK && y[3] == k, "%g %s", y[3], f.text().c_str());
  CHECK(b.gemm->prepare(dev, &weight, f) == DI_INVALID_ARGUMENT, "a weight without room for prepared was accepted");
  a.size = 0;
  CHECK(b.gemm->gemm(dev, queue, &a, f) == DI_INVALID_ARGUMENT && f.text().find("size 0") != std::string::npos, "%s", f.text().c_str());
}

// All formats against a plain double sum; packed, unpacked and grouped give the same bits.
void products() {
  for (uint32_t format : {DI_W_BF16, DI_W_F32, DI_W_FP8_TILE, DI_W_FP8_ROW, DI_W_MXFP4})
    for (int n : {1, 16, 37})
      for (int k : {32, 64, 288}) {
        std::vector<uint8_t> raw(size_t(n * k * 4)), scale(size_t(n * k));
        for (auto &v : raw) v = uint8_t(rnd());
        for (auto &v : scale) v = uint8_t(120 + rnd() % 8);
        if (format == DI_W_BF16) for (int i = 0; i < n * k; i++) { uint16_t v = di::bf16(gauss()); std::memcpy(&raw[size_t(i) * 2], &v, 2); }
        if (format == DI_W_F32) for (int i = 0; i < n * k; i++) { float v = gauss(); std::memcpy(&raw[size_t(i) * 4], &v, 4); }
        if (format == DI_W_FP8_TILE || format == DI_W_FP8_ROW) for (auto &v : raw) if ((v & 0x7f) == 0x7f) v = 1;
        const void *data[1] = {raw.data()}, *scales[1] = {scale.data()};
        di_weight w = args<di_weight>();
        w.format = format, w.tile = 32, w.parts = 1, w.n = n, w.k = k, w.data = data, w.scale = scales;
        auto value = [&](int r, int c) -> double {
          size_t i = size_t(r) * size_t(k) + size_t(c);
          switch (format) {
            case DI_W_BF16: { uint16_t v; std::memcpy(&v, &raw[i * 2], 2); return double(di::wide(v)); }
            case DI_W_F32: { float v; std::memcpy(&v, &raw[i * 4], 4); return double(v); }
            case DI_W_FP8_TILE: return double(di::e4m3(raw[i])) * std::ldexp(1.0, int(scale[size_t(r / 32 * (k / 32) + c / 32)]) - 127);
            case DI_W_FP8_ROW: return double(di::e4m3(raw[i])) * std::ldexp(1.0, int(scale[size_t(r * (k / 32) + c / 32)]) - 127);
          }
          uint8_t v = raw[i / 2];
          return double(di::e2m1(c & 1 ? v >> 4 : v)) * std::ldexp(1.0, int(scale[size_t(r * (k / 32) + c / 32)]) - 127);
        };
        const int t = 3;
        uint16_t *x = alloc<uint16_t>(t * k);
        float *y = alloc<float>(t * n), *y2 = alloc<float>(t * n);
        for (int i = 0; i < t * k; i++) x[i] = di::bf16(gauss());
        di_gemm_args a = args<di_gemm_args>();
        a.w = &w, a.x = tensor(x, DI_BF16, {t, k}), a.y = tensor(y, DI_F32, {t, n});
        Failure f;
        CHECK(b.gemm->gemm(dev, queue, &a, f) == DI_OK, "%s", f.text().c_str());
        CHECK(b.gemm->prepare(dev, &w, f) == DI_OK, "%s", f.text().c_str());
        a.y = tensor(y2, DI_F32, {t, n});
        CHECK(b.gemm->gemm(dev, queue, &a, f) == DI_OK, "%s", f.text().c_str());
        CHECK(std::memcmp(y, y2, size_t(t * n) * 4) == 0, "format %u %dx%d: packed differs from unpacked", format, n, k);
        for (int r = 0; r < t; r++)
          for (int c = 0; c < n; c++) {
            double want = 0, mag = 0;
            for (int i = 0; i < k; i++) {
              double p = double(di::wide(x[r * k + i])) * value(c, i);
              want += p;
              mag += std::fabs(p);
            }
            CHECK(std::fabs(double(y[r * n + c]) - want) <= 1e-5 * mag, "format %u %dx%d [%d,%d]: %g, want %g", format, n, k, r, c, double(y[r * n + c]), want);
          }
        CHECK(b.gemm->release(dev, &w, f) == DI_OK && !w.prepared, "%s", f.text().c_str());
      }
}

void variants_agree() {
  std::vector<const Kernels *> list = {&kernels_generic};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) list.push_back(&kernels_avx2);
#endif
  for (int64_t k : {1, 63, 64, 65, 257, 1000})
    for (int64_t rows : {1, 2, 3, 4, 7}) {
      std::vector<float> x(size_t(rows * k)), w(size_t(k * kTile)), first(size_t(rows * kTile)), got(size_t(rows * kTile));
      std::vector<uint16_t> wb(w.size());
      for (auto &v : x) v = gauss();
      for (size_t i = 0; i < w.size(); i++) w[i] = di::wide(wb[i] = di::bf16(gauss()));
      for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < kTile; c++) {
          std::vector<float> col;
          for (int64_t i = 0; i < k; i++) col.push_back(w[size_t(i * kTile + c)]);
          first[size_t(r * kTile + c)] = di::dot(&x[size_t(r * k)], col.data(), k);
        }
      for (const Kernels *kn : list) {
        kn->tile_f32(x.data(), k, rows, w.data(), k, got.data(), kTile);
        CHECK(std::memcmp(first.data(), got.data(), first.size() * 4) == 0, "%s f32 k=%lld rows=%lld", kn->name, (long long)k, (long long)rows);
        kn->tile_bf16(x.data(), k, rows, wb.data(), k, got.data(), kTile);
        CHECK(std::memcmp(first.data(), got.data(), first.size() * 4) == 0, "%s bf16 k=%lld rows=%lld", kn->name, (long long)k, (long long)rows);
        std::vector<float> e1(x.size()), e2(x.size());
        kernels_generic.exps(e1.data(), x.data(), 0.5f, int64_t(x.size()));
        kn->exps(e2.data(), x.data(), 0.5f, int64_t(x.size()));
        CHECK(std::memcmp(e1.data(), e2.data(), e1.size() * 4) == 0, "%s exps", kn->name);
      }
    }
}

// The own functions against the C library, which is accurate to under one unit in the last place of a double.
void functions() {
  double worst = 0;
  for (int i = 0; i < 200000; i++) {
    float x = (float(rnd()) / float(1 << 24) - 0.5f) * 200;
    double want = std::exp(double(x)), err = std::fabs(di::exp_d(double(x)) - want) / want;
    worst = std::max(worst, err);
    float l = float(rnd() + 1) * 0x1p-24f;
    CHECK(std::fabs(di::log_d(double(l)) - std::log(double(l))) <= 4e-16 * std::fabs(std::log(double(l))), "log %a", double(l));
    float angle = float(rnd()) * (i & 1 ? 1.0f : 0x1p-20f), s, c;
    di::sin_cos(angle, &s, &c);
    CHECK(s == float(std::sin(double(angle))) && c == float(std::cos(double(angle))), "sin_cos %a: %a %a", double(angle), double(s), double(c));
    float z = (float(rnd()) / float(1 << 24) - 0.5f) * 60;
    double sp = z > 20 ? double(z) : std::log1p(std::exp(double(z)));
    CHECK(std::fabs(double(di::softplus_f(z)) - sp) <= 1.2e-7 * sp, "softplus %g", double(z));
  }
  CHECK(worst < 1e-15, "exp is off by %g", worst);
  CHECK(di::exp_f(-200.0f) == 0 && di::exp_f(-INFINITY) == 0 && di::exp_f(INFINITY) == INFINITY && std::isnan(di::exp_f(NAN)), "exp at its ends");
  CHECK(di::exp_f(0.0f) == 1 && di::log_f(1.0f) == 0 && di::log_f(0.0f) == -INFINITY && std::isnan(di::log_f(-1.0f)), "exact points");
  for (int i = 0; i < 256; i++)
    if ((i & 0x7f) != 0x7f) CHECK(di::e4m3_code(di::e4m3(uint8_t(i))) == i, "E4M3 code %d", i);
  for (int i = 0; i < 16; i++) CHECK(di::e2m1_code(di::e2m1(uint8_t(i))) == i, "E2M1 code %d", i);
  // Spec 13.4.
  float x[32];
  uint8_t code[32];
  for (int i = 0; i < 32; i++) x[i] = di::round_bf16(0.1f * (float(i) - 15.5f) * (i % 3 ? 1.0f : -1.7f));
  const uint8_t a8[] = {0x7b, 0xf4, 0xf3, 0x78, 0xf1, 0xf0}, f8[] = {7, 13, 13, 6, 12, 12}, f4[] = {7, 13, 13, 6, 13, 12};
  CHECK(di::a8(code, x, 32) == 120 && !std::memcmp(code, a8, 6), "A8");
  CHECK(di::f4e8(code, x, 32) == 126 && !std::memcmp(code, f8, 6), "F4E8");
  CHECK(di::f4e4(code, x, 16) == 0x2e && !std::memcmp(code, f4, 6), "F4E4");
}

void bad_arguments() {
  Failure f;
  auto refused = [&](di_rc rc, const char *want) { CHECK(rc == DI_INVALID_ARGUMENT && f.f.scope == DI_SCOPE_STEP && f.text().find(want) != std::string::npos, "%u %s, want %s", rc, f.text().c_str(), want); };
  uint16_t *x = alloc<uint16_t>(64);
  di_add_args a = args<di_add_args>();
  a.a = a.b = a.y = tensor(x, DI_BF16, {2, 32});
  CHECK(b.vector->add(dev, queue, &a, f) == DI_OK, "%s", f.text().c_str());
  refused(b.vector->add(dev, queue, nullptr, f), "args is NULL");
  refused(b.vector->add(nullptr, queue, &a, f), "device is NULL");
  auto with = [&](const std::function<void(di_tensor &)> &change, const char *want) {
    di_add_args c = a;
    change(c.b);
    refused(b.vector->add(dev, queue, &c, f), want);
  };
  with([](di_tensor &t) { t.data = nullptr; }, "b is absent");
  with([](di_tensor &t) { t.dtype = DI_F32; }, "must be equal");
  with([](di_tensor &t) { t.rank = 9; }, "rank 9");
  with([](di_tensor &t) { t.dim[0] = -1; }, "dimension 0 is -1");
  with([](di_tensor &t) { t.dim[0] = 3; }, "must be equal");
  with([](di_tensor &t) { t.stride = 31; }, "row stride 31");
  with([](di_tensor &t) { t.data = static_cast<char *>(t.data) + 1; }, "not aligned");
  a.a = a.b = a.y = tensor(nullptr, DI_BF16, {0, 32});
  CHECK(b.vector->add(dev, queue, &a, f) == DI_OK, "no rows: %s", f.text().c_str());
  // A message longer than the caller's buffer is cut, not written past it.
  char small[9];
  small[8] = 42;
  f.f.msg = small, f.f.msg_cap = 8;
  CHECK(b.vector->add(dev, queue, nullptr, f) == DI_INVALID_ARGUMENT && f.f.msg_len == 8 && small[8] == 42, "message buffer");
}

void pools() {
  for (unsigned threads : {1u, 2u, 5u}) {
    Pool p(threads);
    for (int round = 0; round < 300; round++) {
      std::vector<std::atomic<int>> hits(size_t(1 + round % 97));
      p.run(int64_t(hits.size()), [](void *c, int64_t lo, int64_t hi, di::Arena &a) {
        a.get<float>(100 + lo);
        for (int64_t i = lo; i < hi; i++) (*static_cast<std::vector<std::atomic<int>> *>(c))[size_t(i)]++;
      }, &hits);
      for (auto &h : hits) CHECK(h == 1, "an item ran %d times", h.load());
    }
    bool caught = false;
    try {
      p.run(50, [](void *, int64_t, int64_t hi, di::Arena &) { if (hi > 10) throw std::bad_alloc(); }, nullptr);
    } catch (const std::bad_alloc &) {
      caught = true;
    }
    CHECK(caught, "an exception of a body was lost");
    if (threads == 5) std::this_thread::sleep_for(std::chrono::milliseconds(5));  // let the workers fall asleep, then wake them
    int sum = 0;
    std::mutex m;
    struct C { int *sum; std::mutex *m; } c{&sum, &m};
    p.run(10, [](void *v, int64_t lo, int64_t hi, di::Arena &) {
      C &k = *static_cast<C *>(v);
      std::lock_guard<std::mutex> l(*k.m);
      *k.sum += int(hi - lo);
    }, &c);
    CHECK(sum == 10, "%d", sum);
  }
}

// A step of two sequences through store, compress, index keys, selection and attention, so that the sanitisers see these paths.
void attention() {
  const int T = 5, D = 64, R = 32, H = 2, ring = 16, ratio = 2, entries = 64;
  auto ints = [&](std::vector<int32_t> v) {
    int32_t *p = alloc<int32_t>(int64_t(v.size()));
    std::memcpy(p, v.data(), v.size() * 4);
    return p;
  };
  di_batch batch = args<di_batch>();
  batch.rows = T, batch.seqs = 2, batch.table_width = 1;
  batch.token = ints({1, 2, 3, 4, 5}), batch.pos = ints({0, 1, 2, 7, 8}), batch.seq = ints({0, 0, 0, 1, 1}), batch.flag = ints({0, 0, 0, 0, 0});
  batch.seq_first = ints({0, 3}), batch.seq_rows = ints({3, 2}), batch.seq_slot = ints({1, 0}), batch.seq_low = ints({0, 0}), batch.seq_write = ints({0, 0}), batch.seq_table = ints({1, 0});
  float *freq = alloc<float>(R / 2), *norm = alloc<float>(D), *sink = alloc<float>(H), *k = alloc<float>(T * D), *s = alloc<float>(T * D);
  for (int i = 0; i < R / 2; i++) freq[i] = float(std::pow(10000.0, -2.0 * i / R));
  for (int i = 0; i < D; i++) norm[i] = 1;
  for (int i = 0; i < T * D; i++) k[i] = gauss(), s[i] = gauss();
  uint16_t *q = alloc<uint16_t>(T * H * D), *kv = alloc<uint16_t>(T * D), *lat = alloc<uint16_t>(T * D), *out = alloc<uint16_t>(T * H * D), *w = alloc<uint16_t>(T * H);
  for (int i = 0; i < T * H * D; i++) q[i] = di::bf16(gauss());
  for (int i = 0; i < T * D; i++) kv[i] = di::bf16(gauss());
  for (int i = 0; i < T * H; i++) w[i] = di::bf16(gauss());
  const int64_t rec_bytes = D + D / 32, main_bytes = D / 2 + D / 16, key_bytes = D / 2 + D / 32;
  uint8_t *rec = alloc<uint8_t>(T * rec_bytes);
  Failure f;
  auto ok = [&](di_rc rc, const char *what) { CHECK(rc == DI_OK, "%s: %s", what, f.text().c_str()); };

  di_quantize_args qa = args<di_quantize_args>();
  qa.format = DI_REC_A8_32, qa.x = tensor(kv, DI_BF16, {T, D}), qa.y = tensor(rec, DI_U8, {T, rec_bytes});
  ok(b.vector->quantize(dev, queue, &qa, f), "quantize");

  auto region = [&](uint32_t format, int64_t row, int rows, int r) {
    di_region g = args<di_region>();
    g.format = format, g.unit_stride = rows * row, g.rows = rows, g.row_bytes = int32_t(row), g.ratio = r, g.dim = D, g.rope = R;
    g.base = alloc<uint8_t>(2 * g.unit_stride);
    return g;
  };
  di_region window = region(DI_REC_A8_32, rec_bytes, ring, 1), cache = region(DI_REC_F4E4_16, main_bytes, entries, ratio), keys = region(DI_REC_F4E8_32, key_bytes, entries, ratio), tail = region(DI_REC_NONE, 2 * D * 4, 3, 1);
  keys.planar = 1;
  di_compress_args ca = args<di_compress_args>();
  ca.ratio = ratio, ca.batch = &batch, ca.k = tensor(k, DI_F32, {T, D}), ca.s = tensor(s, DI_F32, {T, D}), ca.norm = tensor(norm, DI_F32, {D}), ca.eps = 1e-6;
  ca.tail = tail, ca.cache = cache, ca.freq = tensor(freq, DI_F32, {R / 2}), ca.lat = tensor(lat, DI_BF16, {T, D});
  ok(b.attention->compress(dev, queue, &ca, f), "compress");
  CHECK(lat[0] == 0 && lat[D] != 0, "rows 0 and 1: %u %u", lat[0], lat[D]);
  di_index_key_args ka = args<di_index_key_args>();
  ka.hadamard = 1, ka.batch = &batch, ka.k = tensor(lat, DI_BF16, {T, D}), ka.freq = ca.freq, ka.cache = keys;
  ok(b.attention->index_key(dev, queue, &ka, f), "index_key");
  const int top = 3;
  int32_t *sel = alloc<int32_t>(T * top), *cand = alloc<int32_t>(T * 2);
  di_index_select_args sa = args<di_index_select_args>();
  sa.top_k = top, sa.cand_block = 2, sa.batch = &batch, sa.q = tensor(q, DI_BF16, {T, H, D}), sa.w = tensor(w, DI_BF16, {T, H}), sa.scale = 0.5, sa.cache = keys;
  sa.cand_out = tensor(cand, DI_I32, {T, 2}), sa.sel = tensor(sel, DI_I32, {T, top});
  ok(b.attention->index_select(dev, queue, &sa, f), "index_select");
  CHECK(sel[0] == -1 && sel[top] == 0 && sel[top + 1] == -1 && cand[0] == -1 && cand[2] == 0, "selection %d %d %d", sel[0], sel[top], sel[top + 1]);
  sa.cand_in = sa.cand_out, sa.cand_out = tensor(nullptr, DI_I32, {T, 2}), sa.mode = DI_SCORE_BF16;
  ok(b.attention->index_select(dev, queue, &sa, f), "index_select in candidates");
  di_attend_args aa = args<di_attend_args>();
  aa.window = ring, aa.batch = &batch, aa.q = sa.q, aa.rec = qa.y, aa.sel = sa.sel, aa.sink = tensor(sink, DI_F32, {H}), aa.freq = ca.freq, aa.scale = 0.125;
  aa.ring = window, aa.cache = cache, aa.out = tensor(out, DI_BF16, {T, H, D});
  for (uint32_t all : {0u, 1u})
    for (uint32_t mode : {DI_ATTEND_BF16, DI_ATTEND_A8}) {
      aa.all_visible = all, aa.out_mode = mode;
      ok(b.attention->attend(dev, queue, &aa, f), "attend");
      ok(b.attention->attend_block(dev, queue, &aa, f), "attend_block");
    }
  for (int i = 0; i < T * H * D; i++) CHECK(std::isfinite(di::wide(out[i])), "out[%d]", i);
  sel[0] = 5;
  aa.all_visible = 0;
  CHECK(b.attention->attend(dev, queue, &aa, f) == DI_INVALID_ARGUMENT && f.text().find("row 0 selects entry 5") != std::string::npos, "%s", f.text().c_str());
  batch.seq_table = ints({7, 0});
  CHECK(b.attention->index_key(dev, queue, &ka, f) == DI_INVALID_ARGUMENT && f.text().find("granule 7") != std::string::npos, "%s", f.text().c_str());
  di_kv_store_args st = args<di_kv_store_args>();
  st.batch = &batch, st.ring = window, st.rec = qa.y;
  ok(b.attention->kv_store(dev, queue, &st, f), "kv_store");
  CHECK(std::memcmp(static_cast<uint8_t *>(window.base) + window.unit_stride + 2 * rec_bytes, rec + 2 * rec_bytes, size_t(rec_bytes)) == 0, "ring row 2 of slot 1");
}

void sampling() {
  const int L = 4, V = 5000;
  float *logits = alloc<float>(L * V), *lp = alloc<float>(L), *top_lp = alloc<float>(L * 3);
  int32_t *ids = alloc<int32_t>(L), *top = alloc<int32_t>(L * 3);
  di_sampling *p = alloc<di_sampling>(L);
  for (int i = 0; i < L * V; i++) logits[i] = gauss();
  for (int l = 0; l < L; l++) logits[l * V + 77] = 9, logits[l * V + 4000] = 9;
  for (int l = 0; l < L; l++) p[l].seed = 5, p[l].pos = l, p[l].forced = -1;
  p[1].temperature = 1, p[1].top_k = 1;
  p[2].temperature = 2, p[2].top_p = 0.9f, p[2].min_p = 0.01f;
  p[3].forced = 4999;
  di_sample_args a = args<di_sample_args>();
  a.top_n = 3, a.params = p, a.logits = tensor(logits, DI_F32, {L, V}), a.ids = tensor(ids, DI_I32, {L}), a.logprob = tensor(lp, DI_F32, {L});
  a.top_ids = tensor(top, DI_I32, {L, 3}), a.top_logprob = tensor(top_lp, DI_F32, {L, 3});
  Failure f;
  CHECK(b.vector->sample(dev, queue, &a, f) == DI_OK, "%s", f.text().c_str());
  CHECK(ids[0] == 77 && ids[1] == 77 && ids[2] >= 0 && ids[2] < V && ids[3] == 4999, "%d %d %d %d", ids[0], ids[1], ids[2], ids[3]);
  CHECK(top[0] == 77 && top[1] == 4000 && top_lp[0] == lp[0] && lp[3] < lp[0], "top %d %d", top[0], top[1]);
  uint32_t *masks = alloc<uint32_t>(2 * 157);
  di_bias *biases = alloc<di_bias>(3);
  masks[157 + 4000 / 32] = 1u << (4000 % 32);  // row 1: nothing, row 2: one id
  biases[0] = {77, -INFINITY}, biases[1] = {100, 50}, biases[2] = {~100, 1e6f};
  a.masks = masks, a.mask_rows = 2, a.mask_words = 157, a.biases = biases, a.bias_rows = 3;
  p[0].mask = 1, p[1].mask = 2, p[2].bias_count = 2, p[3].forced = -1, p[3].bias_first = 0, p[3].bias_count = 3;
  CHECK(b.vector->sample(dev, queue, &a, f) == DI_OK, "%s", f.text().c_str());
  CHECK(ids[0] == -1 && lp[0] == -INFINITY && ids[1] == 4000 && ids[2] == 100 && ids[3] == 4000, "%d %d %d %d", ids[0], ids[1], ids[2], ids[3]);
  CHECK(top[0] == 77 && top[3] == 77 && lp[1] == top_lp[4], "candidates are those of the logits: %d %d", top[0], top[3]);
  p[1].mask = 3;
  CHECK(b.vector->sample(dev, queue, &a, f) == DI_INVALID_ARGUMENT && f.text().find("mask 3 of 2") != std::string::npos, "%s", f.text().c_str());
  p[1].mask = 0, p[3].bias_first = 1;
  CHECK(b.vector->sample(dev, queue, &a, f) == DI_INVALID_ARGUMENT && f.text().find("the table has 3") != std::string::npos, "%s", f.text().c_str());
  p[3].bias_first = 0, biases[1].id = V;
  CHECK(b.vector->sample(dev, queue, &a, f) == DI_INVALID_ARGUMENT && f.text().find("bias 1: id 5000") != std::string::npos, "%s", f.text().c_str());
  biases[1] = {~100, 0};
  CHECK(b.vector->sample(dev, queue, &a, f) == DI_INVALID_ARGUMENT && f.text().find("not usable") != std::string::npos, "%s", f.text().c_str());
  biases[1] = {100, 1};
  p[0].temperature = NAN;
  CHECK(b.vector->sample(dev, queue, &a, f) == DI_INVALID_ARGUMENT, "NaN temperature");
}

}  // namespace

int main() {
  entry_rules();
  Failure f;
  for (uint32_t threads : {1u, 3u}) {
    di_open_args open = args<di_open_args>();
    open.threads = threads;
    CHECK(b.device->open(0, &open, &dev, f) == DI_OK, "%s", f.text().c_str());
    CHECK(b.queue->create(dev, &queue, f) == DI_OK, "%s", f.text().c_str());
    shorter_args_read_as_zero();
    products();
    bad_arguments();
    attention();
    sampling();
    CHECK(b.queue->sync(dev, queue, f) == DI_OK && b.queue->destroy(dev, queue, f) == DI_OK, "%s", f.text().c_str());
    CHECK(b.device->close(dev, f) == DI_OK, "%s", f.text().c_str());  // frees what is left; the leak checker watches
  }
  variants_agree();
  functions();
  pools();
  if (failures) {
    std::printf("FAIL: %d checks\n", failures);
    return 1;
  }
  std::printf("ok: backends/cpu\n");
  return 0;
}
