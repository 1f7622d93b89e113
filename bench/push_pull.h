// `addend-bench push-pull`: how long a push-pull takes, and what it costs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "bench/options.h"

namespace addend {

// One line of the result.
struct Measurement {
  std::string name{};
  uint64_t bytes = 0;
  std::vector<double> seconds{};  // of each round, from push to result on the slowest rank
  std::optional<double>
      cpu_s_per_GB{};  // of this process and its agent; absent if the agent's is unknown
  uint64_t checksum = 0;
};

// Runs this process's rank of the benchmark; every rank of the job runs the same. Rank 0 prints the
// result to standard output. An error if the results' bits differ between ranks.
absl::Status RunPushPull(const BenchOptions& options);

}  // namespace addend
