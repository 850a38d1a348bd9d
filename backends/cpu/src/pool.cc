#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#if defined(__x86_64__)
#define RELAX() __builtin_ia32_pause()
#else
#define RELAX() std::atomic_signal_fence(std::memory_order_seq_cst)
#endif

// Ops of one step follow each other within microseconds, so a worker looks for the next run about 30 us before it sleeps.
constexpr int kSpin = 1500;

unsigned usable_cpus() {
  for (size_t n = 1024; n <= (size_t(1) << 20); n *= 2) {  // machines with more than 1024 processors need a larger set
    cpu_set_t *set = CPU_ALLOC(n);
    if (!set) break;
    int rc = sched_getaffinity(0, CPU_ALLOC_SIZE(n), set);
    int count = rc == 0 ? CPU_COUNT_S(CPU_ALLOC_SIZE(n), set) : 0;
    CPU_FREE(set);
    if (rc == 0) return count > 0 ? unsigned(count) : 1;
  }
  unsigned n = std::thread::hardware_concurrency();
  return n ? n : 1;
}

Pool::Pool(unsigned threads) {
  for (unsigned i = 0; i < threads; i++) arenas_.push_back(std::make_unique<di::Arena>());
  // Signals belong to the host's own threads: the workers inherit a mask that blocks all.
  struct Blocked {
    sigset_t old;
    Blocked() {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &old);
    }
    ~Blocked() { pthread_sigmask(SIG_SETMASK, &old, nullptr); }
  } blocked;
  try {
    for (unsigned i = 1; i < threads; i++) workers_.emplace_back([this, i] { loop(i); });
  } catch (...) {
    stop_ = true;
    { std::lock_guard<std::mutex> l(mutex_); }
    wake_.notify_all();
    for (auto &t : workers_) t.join();
    throw;
  }
}

Pool::~Pool() {
  stop_ = true;
  { std::lock_guard<std::mutex> l(mutex_); }
  wake_.notify_all();
  for (auto &t : workers_) t.join();
}

void Pool::loop(unsigned self) {
#if defined(__linux__)
  pthread_setname_np(pthread_self(), "deepinfer-cpu");
#endif
  uint64_t seen = 0;  // generation this worker has dealt with
  for (;;) {
    auto idle = [&] { return state_.load() >> 32 == seen && !stop_.load(); };
    for (int i = 0; i < kSpin && idle(); i++) RELAX();
    if (idle()) {
      std::unique_lock<std::mutex> l(mutex_);
      asleep_++;
      wake_.wait(l, [&] { return !idle(); });
      asleep_--;
    }
    if (stop_.load()) return;
    uint64_t s = state_.load();
    while ((s & kOpen) && !state_.compare_exchange_weak(s, s + 1)) {
    }
    seen = s >> 32;
    if (!(s & kOpen)) continue;  // the run ended before this worker came
    work(*arenas_[self]);
    state_.fetch_sub(1);
  }
}

void Pool::work(di::Arena &a) {
  try {
    for (;;) {
      int64_t lo = next_.fetch_add(chunk_, std::memory_order_relaxed);
      if (lo >= n_) return;
      a.reset();
      body_(context_, lo, std::min(lo + chunk_, n_), a);
    }
  } catch (...) {
    next_.store(n_);
    std::lock_guard<std::mutex> l(error_mutex_);
    if (!error_) error_ = std::current_exception();
  }
}

void Pool::run(int64_t n, di::Body body, void *context) {
  if (workers_.empty() || n < 2) {
    arena().reset();
    body(context, 0, n, arena());
    return;
  }
  body_ = body, context_ = context, n_ = n;
  chunk_ = std::max<int64_t>(1, n / (4 * int64_t(size())));  // four chunks a thread even out unequal items
  next_.store(0);
  state_.store(((state_.load() >> 32) + 1) << 32 | kOpen);
  if (asleep_.load() > 0) {
    { std::lock_guard<std::mutex> l(mutex_); }
    wake_.notify_all();
  }
  work(arena());
  state_.fetch_and(~kOpen);
  for (int i = 0; state_.load() & kInside; i++) {
    if (i < kSpin) RELAX();
    else std::this_thread::yield();
  }
  if (error_) {
    std::exception_ptr e = error_;
    error_ = nullptr;
    std::rethrow_exception(e);
  }
}
