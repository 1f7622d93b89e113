// Selects the partitions that change their server after servers have joined or left, or shares have
// changed.
//
// As few bytes move as possible: only a server's bytes beyond its share, and only to servers below
// their share, until no server is off by more than a partition. The moving partitions are spread
// evenly along the tensors. Pure and deterministic: no I/O, no threads, ties go to the lower index.
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
  std::optional<uint32_t> server;  // index of its owner; nullopt: the owner is being emptied
};

struct Move {
  size_t partition = 0;  // index into `partitions`
  uint32_t server = 0;
  uint32_t shard = 0;
};

// `partitions` are in the order of the tensors; `servers` are all servers to be used, with their
// present loads. A partition that fits on no server stays where it is.
std::vector<Move> Rebalance(std::span<const OwnedPartition> partitions,
                            std::vector<ServerLoad> servers);

}  // namespace addend
