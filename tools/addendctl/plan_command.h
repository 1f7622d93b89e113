// `addendctl plan`: the benefit of a number of CPU machines, computed without a cluster.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "lib/plan/shares.h"

namespace addend {

struct PlanQuestion {
  uint32_t gpu_nodes = 0;
  uint32_t cpu_nodes = 0;
  uint64_t bytes = 0;        // M
  double bandwidth_bps = 0;  // of every machine; 0: unknown
  // A bandwidth per machine, GPU machines first: "10Gbps,25Gbps"; empty: all machines equal.
  std::string bandwidths = {};
  // With a model `bytes` is 0: the model's tensors give the bytes.
  std::string model = {};
  uint64_t partition_bytes = 0;  // with a model; 0: auto
  WireRatios ratios = {};
  uint32_t groups = 0;    // equal groups of machines, to be compared; 0: no comparison
  double uplink_bps = 0;  // of each group to the others; 0: no limits
  bool json = false;
};

// The text to print, which ends with a line feed. InvalidArgument names the flag that is missing or
// wrong.
absl::StatusOr<std::string> AnswerPlan(const PlanQuestion& question);

}  // namespace addend
