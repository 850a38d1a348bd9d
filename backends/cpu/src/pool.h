// A fixed set of threads that share index ranges. One run at a time; the caller works too.
#ifndef DI_CPU_POOL_H
#define DI_CPU_POOL_H

#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "portable.h"

class Pool {
 public:
  explicit Pool(unsigned threads);
  ~Pool();  // ends and joins the threads
  unsigned size() const { return unsigned(workers_.size()) + 1; }
  void run(int64_t n, di::Body body, void *context);
  di::Arena &arena() { return *arenas_[0]; }  // of the calling thread inside run

 private:
  // State word: generation of the run in the high half, bit 31 = it may be joined, low bits = workers inside it.
  static constexpr uint64_t kOpen = uint64_t(1) << 31, kInside = kOpen - 1;
  void loop(unsigned self);
  void work(di::Arena &);

  std::vector<std::unique_ptr<di::Arena>> arenas_;
  std::vector<std::thread> workers_;
  std::atomic<uint64_t> state_{0};
  std::atomic<bool> stop_{false};
  std::atomic<int> asleep_{0};
  std::mutex mutex_;
  std::condition_variable wake_;

  // The current run; written while nobody is inside.
  di::Body body_ = nullptr;
  void *context_ = nullptr;
  int64_t n_ = 0, chunk_ = 0;
  std::atomic<int64_t> next_{0};
  std::mutex error_mutex_;
  std::exception_ptr error_;
};

unsigned usable_cpus();  // processors this process may run on

#endif
