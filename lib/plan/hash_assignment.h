// The assignment of BytePS (OSDI '20, section 4.1): it numbers the partitions of all tensors and
// hashes each number into [0, n^2 + kn - 2k). n-k of these values stand for each GPU machine,
// 2(n-1) for each CPU machine. The shares equal those of Eq. 1 only on average, so Addend assigns
// by size instead (assignment.h); this file exists to compare the two. Pure and deterministic.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/plan/assignment.h"

namespace addend {

// Numbers the servers with GPU machines first, then CPU machines; all shards are 0.
// INVALID_ARGUMENT for n = 0, bad sizes, and k > n, which the formula does not cover.
absl::StatusOr<std::vector<TensorAssignment>> AssignByHash(std::span<const TensorSize> tensors,
                                                           const PartitionSize& partition_size,
                                                           size_t gpu_nodes, size_t cpu_nodes);

}  // namespace addend
