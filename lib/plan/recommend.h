// Recommends how many CPU servers a job should borrow. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "lib/plan/shares.h"

namespace addend {

// A job and the CPU servers available to it. Bandwidths as in PlanInput.
struct RecommendInput {
  std::vector<double> gpu_bps;
  std::vector<bool> gpu_sums = {};  // empty: every GPU machine runs a colocated server
  std::vector<double> cpu_bps = {};
  WireRatios ratios = {};
};

// The smallest k in [0, n], where n is the number of GPU machines, whose t_opt_encoded is within
// 1 % of that with n CPU servers. The fastest servers are taken first. Servers beyond the available
// ones count with the mean bandwidth of the available ones, or of the GPU machines if there are no
// CPU servers; all count as equal if no bandwidth is known.
size_t RecommendedServers(const RecommendInput& input);

}  // namespace addend
