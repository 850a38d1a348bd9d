// Decode-shaped matrix products of the full model and of the demo model: time, weight bandwidth and arithmetic rate of each kernel variant on one thread.
#include <chrono>
#include <cstdio>
#include <vector>

#include "kernel.h"

int main() {
  std::vector<const Kernels *> list = {&kernels_generic};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) list.push_back(&kernels_avx2);
#endif
  std::printf("%-8s %6s %6s %5s %10s %9s %9s\n", "kernel", "n", "k", "rows", "us", "GB/s", "GFLOP/s");
  const int64_t shapes[][3] = {{1280, 5120, 1}, {512, 5120, 1}, {2304, 5120, 1}, {5120, 2304, 1}, {2304, 5120, 8}, {2304, 5120, 64}, {256, 256, 1}, {128, 256, 4}};
  for (const Kernels *kn : list)
    for (auto &s : shapes) {
      int64_t n = s[0], k = s[1], rows = s[2];
      std::vector<uint16_t> w(size_t(n * k), 0x3f01);
      std::vector<float> x(size_t(rows * k), 0.5f), y(size_t(rows * kTile));
      auto pass = [&] { for (int64_t t = 0; t < n / kTile; t++) kn->tile_bf16(x.data(), k, rows, w.data() + t * k * kTile, k, y.data(), kTile); };
      pass();
      int reps = int(1 + 400000000 / (n * k * rows));
      auto t0 = std::chrono::steady_clock::now();
      for (int i = 0; i < reps; i++) pass();
      double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - t0).count() / reps;
      std::printf("%-8s %6lld %6lld %5lld %10.1f %9.2f %9.2f\n", kn->name, (long long)n, (long long)k, (long long)rows, us, double(n * k * 2) / us / 1e3, double(2 * n * k * rows) / us / 1e3);
    }
}
