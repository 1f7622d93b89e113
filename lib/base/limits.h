// Limits of the size of a job. The scheduler checks the sizes that members choose at registration;
// summation servers check them again.
#pragma once

#include <cstddef>
#include <cstdint>

namespace addend {

// The nodes of a job. More than any job has, and small enough for tables with an entry for each
// node.
inline constexpr uint32_t kMaxNodes = 1 << 16;
// The ranks of a node. With kMaxNodes the number of a rank fits into the int32 of the trainers'
// messages, and an average's divisor into 32 bits.
inline constexpr uint32_t kMaxLocalSize = 1024;
// The least --partition-bytes: a smaller partition costs more in tables than in data.
inline constexpr uint64_t kMinPartitionBytes = 512;
// The tensors of a job: far above any training job; each costs the scheduler a few kilobytes.
inline constexpr size_t kMaxTensors = 100'000;
// The names of all tensors of a job together: every member of the job, and every server that sums
// for it, is sent all of them in one update.
inline constexpr uint64_t kMaxJobsTensorNameBytes = 32 << 20;
// Limits of a tensor.
inline constexpr size_t kMaxNameBytes = 4096;
inline constexpr size_t kMaxDimensions = 64;
// The participants of a tensor, as a bitmap: later ranks only take part in tensors of all ranks.
inline constexpr size_t kMaxParticipantsBytes = 8192;
// Sums of sizes, and their products with the size of an accumulator, stay inside 64 bits.
inline constexpr uint64_t kMaxElements = uint64_t{1} << 50;
// The partitions of all tensors of a job. Processes that hold them all iterate over them now and
// then.
inline constexpr uint64_t kMaxPartitions = 1 << 20;

// True if a job may have `nodes` nodes of `local_size` ranks each; neither may be 0.
inline constexpr bool IsJobSize(uint64_t nodes, uint64_t local_size) {
  return nodes > 0 && nodes <= kMaxNodes && local_size > 0 && local_size <= kMaxLocalSize;
}

}  // namespace addend
