// Which partitions change their server when servers have come or go, or their shares have changed.
//
// As few bytes move as possible: only what a server has beyond its share, and only to servers below
// theirs, until none is off by more than a partition. What moves is spread evenly along the
// tensors. Pure and deterministic: no I/O, no threads, ties go to the lower index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lib/plan/assignment.h"

namespace addend {

struct OwnedPartition {
  uint64_t bytes = 0;
  uint64_t accumulator_bytes = 0;
  std::optional<uint32_t> server;  // index of its owner; none: that one is to be emptied
};

struct Move {
  size_t partition = 0;  // index
  uint32_t server = 0;
  uint32_t shard = 0;
};

// `partitions` in the order of the tensors; `servers`: all that are to be used, with the loads they
// have now. A partition for which no server has room stays where it is.
std::vector<Move> Rebalance(std::span<const OwnedPartition> partitions,
                            std::vector<ServerLoad> servers);

}  // namespace addend
