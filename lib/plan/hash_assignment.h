// BytePS's own assignment (OSDI '20, section 4.1): the partitions of all tensors are numbered, and
// a hash of the number, in [0, n^2 + kn - 2k), says who sums it: n-k of these values stand for each
// GPU machine, 2(n-1) for each CPU machine. Its shares are Eq. 1's only on average, which is why
// Addend assigns by size (assignment.h); it is here to compare the two. Pure and deterministic.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/plan/assignment.h"

namespace addend {

// Servers are numbered GPU machines first, then CPU machines; all shards are 0. INVALID_ARGUMENT
// for n = 0 or bad sizes, and for k > n, which the formula does not know.
absl::StatusOr<std::vector<TensorAssignment>> AssignByHash(std::span<const TensorSize> tensors,
                                                           const PartitionSize& partition_size,
                                                           size_t gpu_nodes, size_t cpu_nodes);

}  // namespace addend
