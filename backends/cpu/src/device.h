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

// A prepared weight. Its values are packed by the first matrix product with it, so that tables which are only looked up stay as they are:
// tiles of 16 columns, [k][16], as BF16 where every value is exact in BF16 and as floats where not.
struct Packed {
  bool ready = false, f32 = false;
  int64_t tiles = 0, k = 0;
  std::unique_ptr<char[]> data;
  int64_t bytes = 0;
  const void *tile(int64_t part, int64_t t) const;
};

struct di_queue {
  uint32_t magic;
};

struct di_device {
  explicit di_device(unsigned threads, const Kernels &k) : kernels(k), pool(threads) {}
  ~di_device();

  const Kernels &kernels;
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

extern const di_gemm_fns gemm_fns;
extern const di_attention_fns attention_fns;
extern const di_alltoall_fns alltoall_fns;
const di_vector_fns &vector_fns();

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
