// The memory of a partition on a server beside its values. A server reserves it, and the scheduler
// plans with it. Pure.
#pragma once

#include <cstdint>

namespace addend {

// The object, its numbers for each of the job's nodes, and its entries in tables, at most.
inline constexpr uint64_t PartitionTableBytes(uint32_t nodes) {
  return 1152 + 40 * uint64_t{nodes};
}

// The same in asynchronous mode: of each node the report, its round in the value, and its number in
// the stamp of the most recent copy. The fixed part includes the last page of each of the two
// reserved copies, which lie in pages of their own.
inline constexpr uint64_t LatestPartitionTableBytes(uint32_t nodes) {
  return 2 * 4096 + 2048 + 48 * uint64_t{nodes};
}

}  // namespace addend
