// The bridge between a job's state and lib/plan: shares, assignments, and the memory that they
// take. Pure: no I/O, clock or thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/ids.h"
#include "lib/plan/assignment.h"
#include "lib/plan/shares.h"
#include "proto/addend/v1/scheduler.pb.h"

namespace addend {

// The memory that a server has free for a job.
struct ServerRoom {
  uint64_t bytes = ServerLoad::kUnlimited;
  bool of_job_limit = false;  // by --job-memory-limit; else by --memory-limit
};

// A summation server as a job sees it.
struct PlannerServer {
  ServerId id;
  std::string name;            // for messages: "server 3 (host)"
  std::optional<NodeId> node;  // colocated with this node; empty: a CPU server
  double bandwidth_bps = 0;    // of the whole machine; 0: unknown
  double speed = 1;            // the part of that bandwidth that was seen
  uint32_t jobs = 1;           // that share the machine, this job included
  bool job_limited = false;    // as ServerRoom::of_job_limit
  ServerLoad load;             // this job's; `share` is filled in by the planner
};

struct PlannerJob {
  uint32_t nodes = 0;            // of the generation, those that are lost included
  std::vector<double> node_bps;  // by node rank; 0: unknown
  std::vector<PlannerServer> servers;
  WireRatios ratios;
};

struct Targets {
  std::vector<double> shares;  // of PlannerJob::servers, in their order
  // Of raw bytes, and of the job's ratios. Empty: no bandwidth is known, or there is no network.
  std::optional<double> t_opt_s;
  std::optional<double> t_opt_encoded_s;
};

// `bytes`: M, the bytes that the job communicates per step. FAILED_PRECONDITION when nobody can
// sum.
absl::StatusOr<Targets> TargetShares(const PlannerJob& job, double bytes);

// The number of CPU servers that are worth having for the job alone, however many there are: see
// lib/plan.
uint64_t RecommendServers(const PlannerJob& job);

// A plan per descriptor, in their order, without tensor ids. Adds the assigned bytes to the loads
// in `job`. On an error `job` is unchanged; RESOURCE_EXHAUSTED when the servers' memory does not
// suffice for all of them together.
absl::StatusOr<std::vector<v1::TensorPlan>> PlanTensors(
    std::span<const v1::TensorDescriptor* const> tensors, const PartitionSize& partition_size,
    PlannerJob* job);

// A partition of a plan: its server, and its cost there.
struct PlannedPartition {
  uint32_t index = 0;
  ServerId server;
  uint32_t shard = 0;
  uint64_t payload_bytes = 0;
  uint64_t accumulator_bytes = 0;  // with the tables of the partition
  uint64_t elements = 0;
  DType dtype = DType::kFloat32;
  uint64_t table_bytes = 0;
  uint32_t accumulators = 2;
};
// `nodes`: of the job, as PlannerJob::nodes.
void ForEachPartition(const v1::TensorPlan& plan, uint32_t nodes,
                      const std::function<void(const PlannedPartition&)>& visit);
// The memory that a server reserves for this partition, as accumulator_bytes.
uint64_t MemoryBytesOf(const v1::TensorPlan& plan, uint32_t partition, uint32_t nodes);

struct PartitionPlace {
  ServerId server;
  uint32_t shard = 0;
};
inline PartitionPlace PlaceOf(const v1::PartitionMove& move) {
  return {ServerId(move.server()), move.shard()};
}
// Makes it the partition's owner from that plan version on.
void SetOwner(v1::TensorPlan* plan, uint32_t partition, const PartitionPlace& place,
              uint64_t version);
// The same partition at another server.
inline PlannedPartition MovedTo(PlannedPartition partition, const PartitionPlace& place) {
  partition.server = place.server;
  partition.shard = place.shard;
  return partition;
}
// New owners for partitions whose owner is gone (and is not in `job` any more), in their order; the
// others stay where they are. Adds the assigned bytes to the loads in `job`. Errors as PlanTensors.
absl::StatusOr<std::vector<PartitionPlace>> ReassignPartitions(
    std::span<const PlannedPartition> partitions, PlannerJob* job);

struct PlannedMove {
  size_t partition = 0;  // index into the span given
  PartitionPlace to;
};
// The moves that bring the servers of `job` to their shares, as few as possible: see Rebalance in
// lib/plan. `partitions`: all of the job; those at a server that is not in `job` have to leave it,
// where there is room. FAILED_PRECONDITION when nobody can sum.
absl::StatusOr<std::vector<PlannedMove>> PlanMoves(std::span<const PlannedPartition> partitions,
                                                   const PlannerJob& job);

// Why a tensor that PlanTensors refused has no room: its name, the bytes that it needs, the bytes
// that every server has.
absl::Status NoRoom(const v1::TensorDescriptor& tensor, const PartitionSize& partition_size,
                    const PlannerJob& job);

// Whether the descriptor can be planned at all; INVALID_ARGUMENT names the tensor.
absl::Status CheckDescriptor(const v1::TensorDescriptor& tensor,
                             const PartitionSize& partition_size);

// How many partitions the tensor will have.
uint64_t CountPartitions(const v1::TensorDescriptor& tensor, const PartitionSize& partition_size);

// The tensor travels in a lossy type.
bool IsLossy(const v1::TensorDescriptor& tensor);
// INVALID_ARGUMENT: the tensor's order of summation is not that of a job of so many nodes.
absl::Status CheckNumerics(const v1::TensorDescriptor& tensor, uint32_t nodes);
DType DTypeOf(const v1::TensorDescriptor& tensor);
uint64_t ElementsOf(const v1::TensorDescriptor& tensor);
uint64_t BytesOf(const v1::TensorDescriptor& tensor);
// For people: "float32 [3,4] sum".
std::string Describe(const v1::TensorDescriptor& tensor);

}  // namespace addend
