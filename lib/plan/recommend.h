// How many CPU servers are worth borrowing for a job. Pure.
#pragma once

#include <cstddef>
#include <vector>

namespace addend {

// A job and the CPU servers that are there for it. Bandwidths as in PlanInput.
struct RecommendInput {
  std::vector<double> gpu_bps;
  std::vector<bool> gpu_sums;  // empty: every GPU machine runs a colocated server
  std::vector<double> cpu_bps;
};

// The smallest k from 0 to n, the number of GPU machines, with which t_opt is within 1 % of that
// with n CPU servers, the fastest first. Further CPU servers than those that are there count with
// the mean of these, or of the GPU machines if there are none; all count as equal if no bandwidth
// is known.
size_t RecommendedServers(const RecommendInput& input);

}  // namespace addend
