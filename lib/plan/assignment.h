// Which server and shard sums which partition: the "balanced" assignment.
//
// Largest partition first, onto the server furthest below its share; so no server ever exceeds its
// share of all bytes assigned so far by more than one partition, however the tensors are declared,
// as long as shares stay and memory suffices. Pure and deterministic: no I/O, no threads, ties go
// to the lower index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/types.h"

namespace addend {

// What a summation server has and holds, for one job. The caller owns it and keeps it between
// declarations.
struct ServerLoad {
  static constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

  double share = 0;         // of the job's bytes, from MakePlan; scaled here if the sum is not 1
  uint64_t load_bytes = 0;  // payload bytes of the partitions it owns
  std::vector<uint64_t> shard_loads = {
      0};  // the same by shard; its size is the number of shards, at least 1
  uint64_t free_bytes = kUnlimited;  // memory left for accumulators, shared with other jobs
};

struct TensorSize {
  uint64_t elements = 0;
  DType dtype = DType::kFloat32;
};

// Owners of one tensor's partitions, by partition index. `servers` are indices into the caller's
// list of servers.
struct TensorAssignment {
  uint64_t partition_elements = 0;  // of every partition but the last
  std::vector<uint32_t> servers;
  std::vector<uint32_t> shards;
};

// How many bytes a tensor's partitions have. A node sends to all servers at once, so nothing comes
// back before the time of one partition for each, and as long takes the end of a round. Small
// partitions cost processor time instead, which slow links leave. Measured: docs/performance.md.
class PartitionSize {
 public:
  // The same for all tensors.
  PartitionSize(uint64_t bytes) : least_(bytes), most_(bytes) {}
  // For a job whose slowest link carries so many bits per second (0: unknown), with so many
  // servers: partitions for all servers take 11 ms or less; large ones of large tensors 1 ms or
  // less, and a server gets 24 of each or more.
  static PartitionSize Auto(double slowest_bps, size_t servers);

  uint64_t ForTensor(uint64_t tensor_bytes) const;
  uint64_t least() const { return least_; }

 private:
  uint64_t least_, most_;
  uint64_t per_tensor_ = 1;  // partitions of a tensor, at least, if they are not the smallest
};

// Elements of every partition but the last: what fits into partition_bytes, a multiple of 64 from
// 64 on, at least 1.
uint64_t PartitionElements(DType dtype, uint64_t partition_bytes);
uint64_t PartitionElements(const TensorSize& tensor, const PartitionSize& partition_size);
// 0 for a tensor without elements.
uint64_t PartitionCount(uint64_t elements, uint64_t partition_elements);
// Elements of partition `index`; the last may be shorter.
uint64_t ElementsOfPartition(uint64_t elements, uint64_t partition_elements, uint64_t index);
// Memory a server reserves for a partition: one accumulator for each of two rounds.
uint64_t AccumulatorBytes(DType dtype, uint64_t elements);

// Assigns all partitions of the new `tensors` and adds them to the loads in `servers`. The owners
// of a tensor are spread evenly along it, so that every link has work from the first partition on.
// On an error `servers` is unchanged: INVALID_ARGUMENT for bad sizes, FAILED_PRECONDITION without
// servers, RESOURCE_EXHAUSTED when a partition fits on no server (the message has the numbers).
absl::StatusOr<std::vector<TensorAssignment>> Assign(std::span<const TensorSize> tensors,
                                                     const PartitionSize& partition_size,
                                                     std::vector<ServerLoad>* servers);

// Adds the loads of an assignment made earlier (read from a store) ...
void Charge(const TensorSize& tensor, const TensorAssignment& assignment,
            std::vector<ServerLoad>* servers);
// ... or takes those of an undeclared tensor away.
void Release(const TensorSize& tensor, const TensorAssignment& assignment,
             std::vector<ServerLoad>* servers);

}  // namespace addend
