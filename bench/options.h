// The options of addend-bench, read and checked once at its start.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace addend {

// A line of the benchmark: the tensors that every rank pushes in an iteration.
struct Workload {
  std::string name;                    // "4KB", "100x4KB", "resnet50"
  std::vector<uint64_t> tensor_bytes;  // each a multiple of 4: float32
  bool is_model = false;               // named by --model instead of --sizes

  uint64_t bytes() const;
};

struct BenchOptions {
  std::vector<Workload> workloads;
  uint32_t iterations = 0;
  uint32_t warm_up = 0;
  bool in_place = false;  // tensors live in the agent's memory: no copy in, no copy out
  double compute_s = 0;   // `train`: compute time of an iteration
  bool priority = true;   // `train`: tensors that the next forward pass needs first go first
  std::string contents;   // the recording that fills the tensors; empty: random values
  bool json = false;
  std::string socket;  // the agent's; empty: the library's default
  // `local` only
  uint32_t nodes = 0;
  uint32_t cpu_nodes = 0;
  uint32_t local_size = 0;
  uint32_t shards = 0;          // 0: the services' default
  std::string partition_bytes;  // empty: the agent's default
  std::string shared_memory;    // as of the services
};

// Reads the flags. InvalidArgument names the flag, its value and the expected values.
absl::StatusOr<BenchOptions> ReadBenchOptions();

}  // namespace addend
