// `addend-bench push-pull`: the time and the cost of a push-pull.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "bench/options.h"

namespace addend {

// A line of the result.
struct Measurement {
  std::string name{};
  uint64_t bytes = 0;
  std::vector<double> seconds{};  // of each round, from push to result on the slowest rank
  // Of this process and its agent; nullopt if the agent's is unknown.
  std::optional<double> cpu_s_per_GB{};
  uint64_t checksum = 0;
  std::vector<uint64_t> tensor_bytes{};  // of a training
};

// Runs this process's rank of the benchmark; every rank of the job runs the same program. Rank 0
// prints the result to standard output. Returns an error if the results' bits differ between ranks.
absl::Status RunPushPull(const BenchOptions& options);

}  // namespace addend
