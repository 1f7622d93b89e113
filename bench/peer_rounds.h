// The common part of the peers of bench/peers: a rank's rounds, measured in the same way as by
// addend-bench, and printed by rank 0 as JSON.
#pragma once

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

namespace addend {

struct PeerRank {
  int rank = 0, size = 0;
  std::function<void(float*, size_t)> all_reduce;  // sums, in place
  // Reductions over the ranks; both wait for all ranks.
  std::function<double(double)> largest, sum;
};

inline double ProcessSeconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// For each of `sizes` ("4000,100x4000": bytes of a tensor, or of each of a hundred tensors that are
// summed sequentially): {"bytes", "p50_s", "cpu_s_per_GB"}, the processor time per 10^9 bytes and
// rank.
inline void RunPeer(const PeerRank& peer, const std::string& sizes, int iterations, int warm_up) {
  std::string lines;
  std::stringstream words(sizes);
  for (std::string word; std::getline(words, word, ',');) {
    const size_t each = word.find('x') + 1;  // 0 if there is no 'x'
    const size_t tensors = each == 0 ? 1 : std::stoull(word);
    const size_t elements = std::stoull(word.substr(each)) / sizeof(float);
    std::vector<float> values(elements, 1e-30f);
    std::vector<double> seconds;
    double cpu = 0;
    for (int i = -warm_up; i < iterations; ++i) {
      peer.largest(0);
      const double cpu_before = ProcessSeconds();
      const auto start = std::chrono::steady_clock::now();
      for (size_t tensor = 0; tensor < tensors; ++tensor) {
        peer.all_reduce(values.data(), elements);
      }
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      const double used = ProcessSeconds() - cpu_before;
      const double slowest = peer.largest(took.count());
      if (i < 0) continue;
      seconds.push_back(slowest);
      cpu += used;
    }
    std::nth_element(seconds.begin(), seconds.begin() + (iterations - 1) / 2, seconds.end());
    const double bytes = static_cast<double>(tensors * elements * sizeof(float));
    char line[200];
    std::snprintf(line, sizeof(line), "%s{\"bytes\":%.0f,\"p50_s\":%.9f,\"cpu_s_per_GB\":%.6f}",
                  lines.empty() ? "" : ",", bytes, seconds[static_cast<size_t>(iterations - 1) / 2],
                  peer.sum(cpu) / peer.size / iterations / bytes * 1e9);
    lines += line;
  }
  if (peer.rank == 0) std::printf("[%s]\n", lines.c_str());
}

}  // namespace addend
