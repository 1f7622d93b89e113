// The bridge between a job's state and lib/plan.
#include "services/scheduler/planner.h"

#include <algorithm>
#include <limits>
#include <map>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "lib/base/limits.h"
#include "lib/base/participants.h"
#include "lib/base/status_macros.h"
#include "lib/base/units.h"
#include "lib/base/wire_format.h"
#include "lib/plan/rebalance.h"
#include "lib/plan/recommend.h"
#include "lib/summation/table_bytes.h"
#include "lib/wire/frame.h"

namespace addend {
namespace {

// Servers that a message lists by name.
constexpr size_t kServersListed = 8;

// A machine of unknown bandwidth counts as the slowest machine of known bandwidth; if all are
// unknown, all count the same.
double BandwidthOfUnknown(const PlannerJob& job) {
  double slowest = std::numeric_limits<double>::infinity();
  const auto take = [&slowest](double bps) {
    if (bps > 0) slowest = std::min(slowest, bps);
  };
  for (const double bps : job.node_bps) take(bps);
  for (const PlannerServer& server : job.servers) {
    if (!server.node) take(server.bandwidth_bps);
  }
  return slowest;
}

// The bytes that a server reserves for each of the tensor's partitions beside the accumulators.
uint64_t TableBytesOf(const v1::TensorDescriptor& tensor, uint32_t nodes) {
  return tensor.op() == v1::ACCUMULATE ? LatestPartitionTableBytes(nodes)
                                       : PartitionTableBytes(nodes);
}

// The latest value of an asynchronous tensor and its copy, or the accumulators of a sum.
uint32_t AccumulatorsOf(const v1::TensorDescriptor& tensor, uint32_t nodes) {
  return tensor.op() == v1::ACCUMULATE ? 2 : SumAccumulators(nodes);
}

std::vector<TensorSize> SizesOf(std::span<const v1::TensorDescriptor* const> tensors,
                                uint32_t nodes) {
  std::vector<TensorSize> sizes;
  for (const v1::TensorDescriptor* tensor : tensors) {
    sizes.push_back({ElementsOf(*tensor), DTypeOf(*tensor), TableBytesOf(*tensor, nodes),
                     AccumulatorsOf(*tensor, nodes)});
  }
  return sizes;
}

v1::TensorPlan ToPlan(const v1::TensorDescriptor& tensor, const TensorAssignment& assignment,
                      const PlannerJob& job) {
  v1::TensorPlan plan;
  *plan.mutable_tensor() = tensor;
  plan.set_partition_elements(assignment.partition_elements);
  for (const uint32_t index : assignment.servers) plan.add_servers(job.servers[index].id.value());
  plan.mutable_shards()->Add(assignment.shards.begin(), assignment.shards.end());
  return plan;
}

// The elements of a shape; empty if a dimension is negative or the elements are too many.
std::optional<uint64_t> CountElements(const v1::TensorDescriptor& tensor) {
  uint64_t elements = 1;
  bool empty = false;
  for (const int64_t dimension : tensor.shape()) {
    if (dimension < 0) return std::nullopt;
    if (dimension == 0) {
      empty = true;
    } else if (elements > kMaxElements / static_cast<uint64_t>(dimension)) {
      elements = kMaxElements + 1;
    } else {
      elements *= static_cast<uint64_t>(dimension);
    }
  }
  if (empty) return 0;
  if (elements > kMaxElements) return std::nullopt;
  return elements;
}

}  // namespace

absl::StatusOr<Targets> TargetShares(const PlannerJob& job, double bytes) {
  const double slowest = BandwidthOfUnknown(job);
  const bool known = slowest < std::numeric_limits<double>::infinity();
  const double fallback = known ? slowest : 1;
  PlanInput input;
  input.bytes = bytes;
  input.ratios = job.ratios;
  for (const double bps : job.node_bps) input.gpu_bps.push_back(bps > 0 ? bps : fallback);
  input.gpu_sums.assign(job.node_bps.size(), false);
  for (const PlannerServer& server : job.servers) {
    if (server.node) {
      input.gpu_sums[server.node->value()] = true;
    } else {
      const double bps = server.bandwidth_bps > 0 ? server.bandwidth_bps : fallback;
      input.cpu_bps.push_back(bps * server.speed / std::max<uint32_t>(1, server.jobs));
    }
  }
  ADDEND_ASSIGN_OR_RETURN(const Plan plan, MakePlan(input));
  Targets targets;
  if (known) {
    targets.t_opt_s = plan.t_opt_s;
    targets.t_opt_encoded_s = plan.t_opt_encoded_s;
  }
  size_t cpu = 0;
  for (const PlannerServer& server : job.servers) {
    targets.shares.push_back(server.node ? plan.gpu_shares[server.node->value()]
                                         : plan.cpu_shares[cpu++]);
  }
  return targets;
}

uint64_t RecommendServers(const PlannerJob& job) {
  RecommendInput input;
  input.gpu_bps = job.node_bps;
  input.ratios = job.ratios;
  input.gpu_sums.assign(job.node_bps.size(), false);
  for (const PlannerServer& server : job.servers) {
    if (server.node) {
      input.gpu_sums[server.node->value()] = true;
    } else {
      input.cpu_bps.push_back(server.bandwidth_bps);
    }
  }
  return RecommendedServers(input);
}

namespace {

// The loads of the job's servers, with the shares that `bytes` more to sum should have.
absl::StatusOr<std::vector<ServerLoad>> LoadsWithShares(const PlannerJob& job, double bytes) {
  for (const PlannerServer& server : job.servers) {
    bytes += static_cast<double>(server.load.load_bytes);
  }
  ADDEND_ASSIGN_OR_RETURN(const Targets targets, TargetShares(job, bytes));
  std::vector<ServerLoad> loads;
  for (size_t i = 0; i < job.servers.size(); ++i) {
    loads.push_back(job.servers[i].load);
    loads.back().share = targets.shares[i];
  }
  return loads;
}

void KeepLoads(std::vector<ServerLoad> loads, PlannerJob* job) {
  for (size_t i = 0; i < job->servers.size(); ++i) job->servers[i].load = std::move(loads[i]);
}

}  // namespace

absl::StatusOr<std::vector<v1::TensorPlan>> PlanTensors(
    std::span<const v1::TensorDescriptor* const> tensors, const PartitionSize& partition_size,
    PlannerJob* job) {
  double bytes = 0;
  for (const v1::TensorDescriptor* tensor : tensors) bytes += static_cast<double>(BytesOf(*tensor));
  ADDEND_ASSIGN_OR_RETURN(std::vector<ServerLoad> loads, LoadsWithShares(*job, bytes));
  ADDEND_ASSIGN_OR_RETURN(const std::vector<TensorAssignment> assignments,
                          Assign(SizesOf(tensors, job->nodes), partition_size, &loads));
  std::vector<v1::TensorPlan> plans;
  for (size_t i = 0; i < tensors.size(); ++i) {
    plans.push_back(ToPlan(*tensors[i], assignments[i], *job));
  }
  KeepLoads(std::move(loads), job);
  return plans;
}

absl::StatusOr<std::vector<PartitionPlace>> ReassignPartitions(
    std::span<const PlannedPartition> partitions, PlannerJob* job) {
  double bytes = 0;
  std::vector<TensorSize> sizes;  // each partition as a tensor that is not divided any more
  for (const PlannedPartition& partition : partitions) {
    bytes += static_cast<double>(partition.payload_bytes);
    sizes.push_back(
        {partition.elements, partition.dtype, partition.table_bytes, partition.accumulators});
  }
  ADDEND_ASSIGN_OR_RETURN(std::vector<ServerLoad> loads, LoadsWithShares(*job, bytes));
  ADDEND_ASSIGN_OR_RETURN(const std::vector<TensorAssignment> assignments,
                          Assign(sizes, kMaxPayloadBytes, &loads));
  std::vector<PartitionPlace> places;
  for (const TensorAssignment& assignment : assignments) {
    places.push_back({job->servers[assignment.servers[0]].id, assignment.shards[0]});
  }
  KeepLoads(std::move(loads), job);
  return places;
}

absl::StatusOr<std::vector<PlannedMove>> PlanMoves(std::span<const PlannedPartition> partitions,
                                                   const PlannerJob& job) {
  std::map<ServerId, uint32_t> index;
  for (size_t i = 0; i < job.servers.size(); ++i) index[job.servers[i].id] = i;
  double leaving = 0;
  std::vector<OwnedPartition> owned;
  for (const PlannedPartition& partition : partitions) {
    const auto server = index.find(partition.server);
    OwnedPartition one{partition.payload_bytes, partition.accumulator_bytes, std::nullopt};
    if (server != index.end()) one.server = server->second;
    if (!one.server) leaving += static_cast<double>(one.bytes);
    owned.push_back(one);
  }
  ADDEND_ASSIGN_OR_RETURN(const std::vector<ServerLoad> loads, LoadsWithShares(job, leaving));
  std::vector<PlannedMove> moves;
  for (const Move& move : Rebalance(owned, loads)) {
    moves.push_back({move.partition, {job.servers[move.server].id, move.shard}});
  }
  return moves;
}

absl::Status NoRoom(const v1::TensorDescriptor& tensor, const PartitionSize& partition_size,
                    const PlannerJob& job) {
  const DType dtype = DTypeOf(tensor);
  const uint64_t elements = ElementsOf(tensor);
  const uint32_t accumulators = AccumulatorsOf(tensor, job.nodes);
  std::vector<std::string> free;
  for (const PlannerServer& server : job.servers) {
    if (free.size() == kServersListed) {
      free.push_back(
          absl::StrFormat("%d further servers are no better", job.servers.size() - kServersListed));
      break;
    }
    free.push_back(absl::StrFormat("%s has %s %s", server.name,
                                   FormatByteSize(server.load.free_bytes),
                                   server.job_limited ? "left for this job" : "free"));
  }
  const bool job_limited = std::any_of(job.servers.begin(), job.servers.end(),
                                       [](const auto& server) { return server.job_limited; });
  return absl::ResourceExhaustedError(absl::StrFormat(
      "tensor '%s' needs %s for its accumulators, in partitions of up to %s, but the summation "
      "servers have no room for it: %s; raise %s or start another addend-summation",
      tensor.name(), FormatByteSize(AccumulatorBytes(dtype, elements, accumulators)),
      FormatByteSize(AccumulatorBytes(
          dtype, std::min(elements, PartitionElements({elements, dtype}, partition_size)),
          accumulators)),
      absl::StrJoin(free, ", "), job_limited ? "--job-memory-limit" : "--memory-limit"));
}

absl::Status CheckDescriptor(const v1::TensorDescriptor& tensor,
                             const PartitionSize& partition_size) {
  const auto refuse = [&tensor](const std::string& why) {
    return absl::InvalidArgumentError(
        absl::StrFormat("tensor '%s' cannot be summed: %s", tensor.name().substr(0, 200), why));
  };
  if (tensor.name().empty()) return refuse("its name is empty");
  if (tensor.name().size() > kMaxNameBytes) {
    return refuse(absl::StrFormat("its name has %d bytes, more than %d", tensor.name().size(),
                                  kMaxNameBytes));
  }
  if (!v1::DType_IsValid(tensor.dtype()) || !v1::ReduceOp_IsValid(tensor.op())) {
    return refuse("its element type or operation is unknown to this version");
  }
  const auto numerics = NumericsOf(tensor.reduction_tree());
  if (!numerics || (numerics->wire.lossy() &&
                    !MayBeLossy(DTypeOf(tensor), static_cast<ReduceOp>(tensor.op())))) {
    return refuse(absl::StrFormat("the numerics '%s' are unknown to this version for its type",
                                  tensor.reduction_tree()));
  }
  if (tensor.shape_size() > static_cast<int>(kMaxDimensions)) {
    return refuse(
        absl::StrFormat("it has %d dimensions, more than %d", tensor.shape_size(), kMaxDimensions));
  }
  const std::optional<uint64_t> elements = CountElements(tensor);
  if (!elements) return refuse(absl::StrFormat("its shape is %s", Describe(tensor)));
  const uint64_t partitions = CountPartitions(tensor, partition_size);
  if (partitions > kMaxPartitions) {
    return refuse(
        absl::StrFormat("it would have %d partitions, more than %d: raise "
                        "--partition-bytes",
                        partitions, kMaxPartitions));
  }
  return absl::OkStatus();
}

uint64_t CountPartitions(const v1::TensorDescriptor& tensor, const PartitionSize& partition_size) {
  const uint64_t elements = ElementsOf(tensor);
  return PartitionCount(elements, PartitionElements({elements, DTypeOf(tensor)}, partition_size));
}

bool IsLossy(const v1::TensorDescriptor& tensor) {
  const auto numerics = NumericsOf(tensor.reduction_tree());
  return numerics && numerics->wire.lossy();
}

absl::Status CheckNumerics(const v1::TensorDescriptor& tensor, uint32_t nodes) {
  const auto numerics = NumericsOf(tensor.reduction_tree());
  const Numerics here = NumericsIn(nodes, numerics ? numerics->wire : WireFormat());
  if (numerics == here) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "tensor '%s' was declared with the numerics '%s', but this release sums in a job of %d nodes "
      "by '%s': run agents of the scheduler's release",
      tensor.name(), tensor.reduction_tree(), nodes, ToString(here)));
}

DType DTypeOf(const v1::TensorDescriptor& tensor) { return static_cast<DType>(tensor.dtype()); }

uint64_t ElementsOf(const v1::TensorDescriptor& tensor) {
  return CountElements(tensor).value_or(0);
}

uint64_t BytesOf(const v1::TensorDescriptor& tensor) {
  return ElementsOf(tensor) * SizeOf(DTypeOf(tensor));
}

std::string Describe(const v1::TensorDescriptor& tensor) {
  std::string text =
      absl::StrFormat("%s [%s] %s", Name(DTypeOf(tensor)), absl::StrJoin(tensor.shape(), ","),
                      Name(static_cast<ReduceOp>(tensor.op())));
  if (const auto numerics = NumericsOf(tensor.reduction_tree()); !numerics) {
    text += absl::StrFormat(" (numerics %s)", tensor.reduction_tree());
  } else if (numerics->wire.lossy()) {
    text += absl::StrFormat(" (wire %s)", ToString(numerics->wire));
  }
  if (tensor.participants().empty()) return text;
  const auto participants =
      Participants::FromBits(tensor.participants(), std::numeric_limits<uint64_t>::max());
  return text + " of " + (participants ? participants->Text() : "unknown ranks");
}

void ForEachPartition(const v1::TensorPlan& plan, uint32_t nodes,
                      const std::function<void(const PlannedPartition&)>& visit) {
  const DType dtype = DTypeOf(plan.tensor());
  const uint64_t elements = ElementsOf(plan.tensor());
  const uint64_t table = TableBytesOf(plan.tensor(), nodes);
  const uint32_t accumulators = AccumulatorsOf(plan.tensor(), nodes);
  for (int i = 0; i < plan.servers_size(); ++i) {
    const uint64_t size = ElementsOfPartition(elements, plan.partition_elements(), i);
    visit({static_cast<uint32_t>(i), ServerId(plan.servers(i)), plan.shards(i),
           size * SizeOf(dtype), AccumulatorBytes(dtype, size, accumulators) + table, size, dtype,
           table, accumulators});
  }
}

uint64_t MemoryBytesOf(const v1::TensorPlan& plan, uint32_t partition, uint32_t nodes) {
  const uint64_t elements =
      ElementsOfPartition(ElementsOf(plan.tensor()), plan.partition_elements(), partition);
  return AccumulatorBytes(DTypeOf(plan.tensor()), elements, AccumulatorsOf(plan.tensor(), nodes)) +
         TableBytesOf(plan.tensor(), nodes);
}

void SetOwner(v1::TensorPlan* plan, uint32_t partition, const PartitionPlace& place,
              uint64_t version) {
  const int index = static_cast<int>(partition);
  plan->mutable_versions()->Resize(plan->servers_size(), 0);
  plan->set_servers(index, place.server.value());
  plan->set_shards(index, place.shard);
  plan->set_versions(index, version);
}

}  // namespace addend
