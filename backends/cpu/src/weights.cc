// Weights are held as tiles of 16 columns, packed by the first matrix product that uses them; the same tiles serve float and double sums.
#include "device.h"

using namespace di;

std::atomic<int64_t> packed_bytes{0};

const void *Packed::tile(int64_t part, int64_t t) const {
  const char *p = data.get() + (64 - uintptr_t(data.get()) % 64) % 64;
  return p + (part * tiles + t) * k * kTile * (f32 ? 4 : 2);
}

void turn(float *tile, const float *rows, int64_t cols, int64_t k) {
  for (int64_t i = 0; i < k; i++) {
    for (int64_t c = 0; c < cols; c++) tile[i * kTile + c] = rows[c * k + i];
    for (int64_t c = cols; c < kTile; c++) tile[i * kTile + c] = 0;
  }
}

const Packed *di_device::packed(const di_weight &w) {
  Packed *p = static_cast<Packed *>(w.prepared);
  {
    std::lock_guard<std::mutex> l(weights_mutex_);
    if (!p || !weights_.count(p)) return nullptr;
  }
  if (p->ready) return p;
  p->k = w.k;
  p->tiles = (w.n + kTile - 1) / kTile;
  int64_t items = p->tiles * w.parts;
  std::atomic<bool> inexact{w.format == DI_W_F32 || w.format == DI_W_I64 || w.format == DI_W_I32};
  for (;;) {
    p->f32 = inexact;
    p->bytes = items * w.k * kTile * (p->f32 ? 4 : 2);
    p->data.reset(new char[size_t(p->bytes) + 64]);
    each(this, items, w.k * kTile * 4, [&](int64_t i, Arena &s) {
      int64_t part = i / p->tiles, c0 = i % p->tiles * kTile, cols = std::min(kTile, w.n - c0);
      float *rows = s.get<float>(cols * w.k), *tile = s.get<float>(kTile * w.k);
      for (int64_t c = 0; c < cols; c++) decode_row(rows + c * w.k, w, part, c0 + c);
      void *out = const_cast<void *>(p->tile(part, c0 / kTile));
      if (p->f32) {
        turn(static_cast<float *>(out), rows, cols, w.k);
        return;
      }
      turn(tile, rows, cols, w.k);
      uint16_t *o = static_cast<uint16_t *>(out);
      bool exact = true;
      for (int64_t q = 0; q < kTile * w.k; q++) {
        o[q] = bf16(tile[q]);
        exact = exact && (bits(tile[q]) & 0xffff) == 0;
      }
      if (!exact) inexact = true;
    });
    if (p->f32 || !inexact) break;
  }
  packed_bytes += p->bytes;
  p->ready = true;
  return p;
}

di_rc di_device::prepare(di_weight *w, di_fail *f) {
  return guard(f, [&] {
    weight("w", w);
    if (w->size < offsetof(di_weight, prepared) + sizeof w->prepared) refuse("weight has size %u, too short to hold prepared", w->size);
    std::lock_guard<std::mutex> l(weights_mutex_);
    if (w->prepared && weights_.count(static_cast<Packed *>(w->prepared))) return;
    auto p = std::make_unique<Packed>();
    weights_.insert(p.get());
    w->prepared = p.release();
  });
}

di_rc di_device::release(di_weight *w, di_fail *f) {
  return guard(f, [&] {
    known(w, "weight");
    if (!w->prepared) return;
    std::lock_guard<std::mutex> l(weights_mutex_);
    Packed *p = static_cast<Packed *>(w->prepared);
    if (!weights_.erase(p)) refuse("weight%s was not prepared by this device", name_of(known(w, "weight")).c_str());
    if (p->ready) packed_bytes -= p->bytes;
    delete p;
    w->prepared = nullptr;
  });
}

di_device::~di_device() {
  for (Packed *p : weights_) {
    if (p->ready) packed_bytes -= p->bytes;
    delete p;
  }
  while (!blocks_.empty()) free(reinterpret_cast<void *>(blocks_.begin()->first));
}

di_rc prepare_weight(di_device *dev, di_weight *w, di_fail *f) {
  if (!dev) return report(f, DI_INVALID_ARGUMENT, DI_SCOPE_STEP, 0, "device is NULL");
  return dev->prepare(w, f);
}
di_rc release_weight(di_device *dev, di_weight *w, di_fail *f) {
  if (!dev) return report(f, DI_INVALID_ARGUMENT, DI_SCOPE_STEP, 0, "device is NULL");
  return dev->release(w, f);
}

// What the portable ops ask of their host.
namespace di {

// Work, in multiply-adds, below which waking the threads costs more than it gains.
constexpr int64_t kGrain = 65536;

void host_parallel(di_device *dev, int64_t n, int64_t cost, Body body, void *context) {
  if (cost < 1) cost = 1;
  if (n < 2 || n <= kGrain / cost) {
    dev->pool.arena().reset();
    body(context, 0, n, dev->pool.arena());
    return;
  }
  dev->pool.run(n, body, context);
}

Arena &host_arena(di_device *dev) { return dev->arena; }

}  // namespace di
