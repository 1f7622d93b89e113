// What a record of the store has to fulfil before membership works with it: a file that was
// damaged, or written by somebody else, must not end the scheduler later.
#include <algorithm>
#include <set>

#include "lib/base/status_macros.h"
#include "lib/plan/assignment.h"
#include "lib/wire/frame.h"
#include "services/scheduler/membership_scope.h"

namespace addend {
namespace {

using Stages = v1::AgreementRecord;

absl::Status CheckThat(bool holds, std::string_view else_what) {
  if (holds) return absl::OkStatus();
  return absl::DataLossError(absl::string_view(else_what.data(), else_what.size()));
}

// No scheduler comes near the last number that there is.
constexpr uint64_t kNumbersMost = uint64_t{1} << 62;
constexpr double kLastSecond = 1e11;  // since 1970; in the year 5138
bool IsNext(uint32_t number) { return number != 0 && number < uint32_t{1} << 31; }
bool IsNext(uint64_t number) { return number != 0 && number < kNumbersMost; }

bool IsPlannable(const v1::TensorDescriptor& tensor) {
  return CheckDescriptor(tensor, kMaxPayloadBytes).ok();
}

bool IsSubset(const NodeSet& few, const NodeSet& many, uint32_t nodes) {
  for (uint32_t node = 0; node < nodes; ++node) {
    if (few.Contains(NodeId(node)) && !many.Contains(NodeId(node))) return false;
  }
  return true;
}

// Of nodes of the job alone.
bool IsSetOf(uint32_t nodes, const NodeSet& set) {
  uint32_t size = 0;
  for (uint32_t node = 0; node < nodes; ++node) size += set.Contains(NodeId(node));
  return size == set.size();
}

}  // namespace

absl::Status CheckRecord(const v1::IdsRecord& record) {
  return CheckThat(IsNext(record.next_server_id()) && IsNext(record.next_job_id()), "a number");
}

absl::Status CheckRecord(const v1::JobRecord& record) {
  // As a node brings them.
  v1::RegisterNodeRequest node;
  node.set_incarnation(1);
  node.set_job(record.name());
  *node.mutable_settings() = record.settings();
  ADDEND_RETURN_IF_ERROR(CheckNode(node));
  ADDEND_RETURN_IF_ERROR(CheckThat(v1::JobState_IsValid(record.state()), "unknown state"));
  ADDEND_RETURN_IF_ERROR(
      CheckThat(record.created_unix_s() >= 0 && record.created_unix_s() <= kLastSecond, "no time"));
  return CheckThat(record.job_id() != 0 && IsNext(record.generation()) &&
                       IsNext(record.next_tensor_id()) && IsNext(record.next_agreement()) &&
                       record.plan_version() < kNumbersMost,
                   "a number");
}

absl::Status CheckRecord(const v1::NodeRecord& record, const Job& job) {
  ADDEND_RETURN_IF_ERROR(CheckNode(record.registration()));
  return CheckThat(record.registration().job() == job.name &&
                       record.registration().node_rank() < job.settings.num_nodes(),
                   "a node of another job");
}

absl::Status CheckRecord(const v1::AgreementRecord& record, const Job& job) {
  const uint32_t nodes = job.settings.num_nodes();
  const NodeSet declared(record.declared());
  const NodeSet undeclared(record.undeclared());
  ADDEND_RETURN_IF_ERROR(CheckThat(
      record.agreement() != 0 && record.agreement() < job.next_agreement, "no such agreement"));
  ADDEND_RETURN_IF_ERROR(CheckThat(v1::AgreementRecord_Stage_IsValid(record.stage()), "stage"));
  ADDEND_RETURN_IF_ERROR(CheckThat(
      IsPlannable(record.tensor()) && (!record.has_differing() || IsPlannable(record.differing())),
      "no such tensor can be summed"));
  ADDEND_RETURN_IF_ERROR(CheckThat(IsSetOf(nodes, declared) && IsSetOf(nodes, undeclared) &&
                                       IsSubset(undeclared, declared, nodes),
                                   "nodes that the job has not"));
  // Nodes take part in the agreements on a name one after the other, and only the first is planned.
  const auto former = job.by_name.find(record.tensor().name());
  if (former == job.by_name.end()) return absl::OkStatus();
  return CheckThat((record.stage() == Stages::COLLECTING || record.stage() == Stages::REFUSED) &&
                       IsSubset(declared, job.tensors.at(former->second.back()).undeclared, nodes),
                   "it comes before another one of that name has ended");
}

absl::Status CheckRecord(const v1::PlanRecord& record, const Job& job, const Tensor& tensor) {
  const v1::TensorPlan& plan = record.plan();
  const auto count = static_cast<uint64_t>(plan.servers_size());
  const auto shard_fits = [](uint32_t shard) { return shard < kMaxShards; };
  const auto was_planned = [&job](uint64_t version) { return version <= job.plan_version.value(); };
  ADDEND_RETURN_IF_ERROR(CheckThat(plan.tensor_id() != 0 && plan.tensor_id() < job.next_tensor &&
                                       !job.by_tensor_id.contains(plan.tensor_id()),
                                   "the tensor's number"));
  ADDEND_RETURN_IF_ERROR(
      CheckThat(plan.tensor().SerializeAsString() == tensor.descriptor.SerializeAsString(),
                "another tensor than was agreed"));
  ADDEND_RETURN_IF_ERROR(CheckThat(
      plan.partition_elements() != 0 &&
          plan.partition_elements() <= kMaxPayloadBytes / SizeOf(DTypeOf(plan.tensor())) &&
          count == PartitionCount(ElementsOf(plan.tensor()), plan.partition_elements()) &&
          plan.shards_size() == plan.servers_size() &&
          (plan.versions_size() == 0 || plan.versions_size() == plan.servers_size()),
      "partitions"));
  ADDEND_RETURN_IF_ERROR(CheckThat(tensor.stage == Stages::PLANNED || plan.moves().empty(),
                                   "moves of a tensor that was not published"));
  std::set<uint32_t> moved;
  for (const v1::PartitionMove& move : plan.moves()) {
    ADDEND_RETURN_IF_ERROR(CheckThat(move.partition() < count && shard_fits(move.shard()) &&
                                         move.version() != 0 && was_planned(move.version()) &&
                                         moved.insert(move.partition()).second,
                                     "a move"));
  }
  return CheckThat(std::all_of(plan.shards().begin(), plan.shards().end(), shard_fits) &&
                       std::all_of(plan.versions().begin(), plan.versions().end(), was_planned),
                   "an owner");
}

}  // namespace addend
