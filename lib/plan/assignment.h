// Maps each partition to the server and shard that sum it: the "balanced" assignment.
//
// Tensors come one after the other. The tensor's largest partition comes first and goes to the
// server furthest below its share of all bytes so far. So no server exceeds that share by more than
// one partition, in whatever order the tensors are declared, as long as shares stay and memory
// suffices. Every tensor is spread over the servers in proportion to their shares, also within a
// batch: training sends few tensors at a time, and each has to keep all links busy. Where
// memory does not suffice in that way, the batch is assigned together, largest first. Pure
// and deterministic: no I/O, no threads, ties go to the lower index.
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

// Capacity and load of a summation server, for one job. The caller owns it and keeps it between
// declarations.
struct ServerLoad {
  static constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

  double share = 0;         // of the job's bytes, from MakePlan; scaled here if the sum is not 1
  uint64_t load_bytes = 0;  // payload bytes of the partitions it owns
  std::vector<uint64_t> shard_loads = {
      0};  // the same by shard; its size is the number of shards, at least 1
  uint64_t free_bytes = kUnlimited;  // memory left for partitions, shared with other jobs
};

struct TensorSize {
  uint64_t elements = 0;
  DType dtype = DType::kFloat32;
  uint64_t table_bytes = 0;   // a server's memory for each partition beside its accumulators
  uint32_t accumulators = 2;  // of each partition: SumAccumulators(), 2 of an asynchronous tensor
};

// Owners of a tensor's partitions, by partition index. `servers` are indices into the caller's list
// of servers.
struct TensorAssignment {
  uint64_t partition_elements = 0;  // of every partition but the last
  std::vector<uint32_t> servers;
  std::vector<uint32_t> shards;
};

// The rule for the partition size of a tensor. A node sends to all servers at once, so the first
// result comes back only after every server has been sent a partition, and a round ends with the
// same delay: small partitions shorten both. They cost processor time, which is available where
// links are slow. Measured: docs/performance.md.
class PartitionSize {
 public:
  // The same size for all tensors.
  PartitionSize(uint64_t bytes) : least_(bytes), most_(bytes) {}
  // The rule for a job whose slowest link carries `slowest_bps` bits per second (0: unknown) to
  // `servers` servers. Partitions for all servers take at most 11 ms on that link, and 6 ms
  // on a link of less than 2 Gbit/s, where tensors of a few hundred KB should still reach all
  // servers. Large tensors have larger partitions, if these take at most 1 ms and every server gets
  // 24 or more of them.
  static PartitionSize Auto(double slowest_bps, size_t servers);

  uint64_t ForTensor(uint64_t tensor_bytes) const;
  uint64_t least() const { return least_; }

 private:
  uint64_t least_, most_;
  uint64_t per_tensor_ = 1;  // least number of partitions of a tensor with partitions above the
                             // least size
};

// Elements of every partition but the last: as many as fit into partition_bytes, rounded down to a
// multiple of 64 from 64 on, at least 1.
uint64_t PartitionElements(DType dtype, uint64_t partition_bytes);
uint64_t PartitionElements(const TensorSize& tensor, const PartitionSize& partition_size);
// Returns 0 for a tensor without elements.
uint64_t PartitionCount(uint64_t elements, uint64_t partition_elements);
// Elements of partition `index`; the last may be shorter.
uint64_t ElementsOfPartition(uint64_t elements, uint64_t partition_elements, uint64_t index);
// The accumulators of a partition in a job of so many nodes: for each of two rounds, and for each
// level of the sum below the last (lib/base/sum_tree.h).
uint32_t SumAccumulators(uint32_t nodes);
// Memory that a server reserves for a partition with so many accumulators.
uint64_t AccumulatorBytes(DType dtype, uint64_t elements, uint32_t accumulators);

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
