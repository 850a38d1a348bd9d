// The opened device: threads, memory, packed weights.
#ifndef DI_CPU_DEVICE_H
#define DI_CPU_DEVICE_H

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "kernel.h"
#include "pool.h"
#include "portable.h"

// One set of inner loops, for both types of sums.
struct Variant {
  const char *name;
  const struct Kernels_f32 *f32;
  const struct Kernels_f64 *f64;
};

// A prepared weight. Its values are packed by the first matrix product with it, so that tables which are only looked up stay as they are:
// tiles of 16 columns, [k][16], as BF16 where every value is exact in BF16 and as floats where not.
struct Packed {
  bool ready = false, f32 = false;
  int64_t tiles = 0, k = 0;
  std::unique_ptr<char[]> data;
  int64_t bytes = 0;
  const void *tile(int64_t part, int64_t t) const;
};

// Turns cols rows of k floats into a tile [k][16], zero beyond cols.
void turn(float *tile, const float *rows, int64_t cols, int64_t k);

struct di_queue {
  uint32_t magic;
};

struct di_device {
  di_device(unsigned threads, const Variant &v, bool f64) : kernels_f32(v.f32), kernels_f64(v.f64), f64(f64), pool(threads) {}
  ~di_device();

  const struct Kernels_f32 *kernels_f32;
  const struct Kernels_f64 *kernels_f64;
  const bool f64;  // sums and element-wise functions in double
  Pool pool;
  di::Arena arena;  // of the op itself; the pool's threads have their own
  std::mutex op;    // one op at a time, whatever queue it came from

  // Packs on first use; nullptr when the weight was not prepared here.
  const Packed *packed(const di_weight &w);
  di_rc prepare(di_weight *w, di_fail *f);
  di_rc release(di_weight *w, di_fail *f);

  void *alloc(uint64_t bytes);
  bool free(void *p);
  // Bytes from p to the end of the allocation that holds it; -1 when it is not memory of this device.
  int64_t room(const void *p);

 private:
  struct Block { uint64_t bytes; bool mapped; };
  std::mutex memory_;
  std::map<uintptr_t, Block> blocks_;
  std::mutex weights_mutex_;
  std::set<Packed *> weights_;
};

extern std::atomic<int64_t> packed_bytes;  // of all devices, reported among the features

// The families, compiled for each type of sums; backend.cc chooses by device.
extern const di_gemm_fns gemm_fns_f32, gemm_fns_f64;
extern const di_attention_fns attention_fns_f32, attention_fns_f64;
extern const di_alltoall_fns alltoall_fns_f32, alltoall_fns_f64;
di_rc prepare_weight(di_device *, di_weight *, di_fail *);
di_rc release_weight(di_device *, di_weight *, di_fail *);

// Runs one op under the device's lock.
template <class F>
di_rc device_op(di_device *dev, di_fail *f, F &&body) {
  return di::guard(f, [&] {
    if (!dev) di::refuse("device is NULL");
    std::lock_guard<std::mutex> lock(dev->op);
    dev->arena.reset();
    body();
  });
}

#endif
