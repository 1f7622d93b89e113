// The scheduler's records: written from the state, checked, and read back into it.
#include "services/scheduler/records.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "lib/base/status_macros.h"
#include "lib/plan/assignment.h"
#include "lib/wire/frame.h"
#include "services/scheduler/admission.h"
#include "services/scheduler/planner.h"
#include "services/scheduler/relays.h"

namespace addend::records {
namespace {

using Stages = v1::AgreementRecord;

absl::Status CheckThat(bool holds, std::string_view else_this) {
  if (holds) return absl::OkStatus();
  return absl::DataLossError(absl::string_view(else_this.data(), else_this.size()));
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

// Whether all members of the set are nodes of the job.
bool IsSetOf(uint32_t nodes, const NodeSet& set) {
  uint32_t size = 0;
  for (uint32_t node = 0; node < nodes; ++node) size += set.Contains(NodeId(node));
  return size == set.size();
}

absl::Status Check(const v1::JobRecord& record) {
  // The settings as a node brings them.
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

absl::Status Check(const v1::AgreementRecord& record, const Job& job) {
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
  // Nodes take part in the agreements on a name in turn, and only the first agreement is planned.
  const DeclaredTensor* const former = job.current.tensors.Last(record.tensor().name());
  if (former == nullptr) return absl::OkStatus();
  return CheckThat((record.stage() == Stages::COLLECTING || record.stage() == Stages::REFUSED) &&
                       IsSubset(declared, former->undeclared, nodes),
                   "it comes before another one of that name has ended");
}

}  // namespace

v1::IdsRecord RecordOfIds(const Fleet& fleet, const Jobs& jobs) {
  v1::IdsRecord record;
  record.set_next_server_id(fleet.next_number());
  record.set_next_job_id(jobs.next_number());
  return record;
}

v1::ServerRecord RecordOf(const Server& server) {
  v1::ServerRecord record;
  record.set_server_id(server.id.value());
  *record.mutable_registration() = server.info;
  record.set_draining(server.draining);
  record.set_secret_digest(server.secret_digest);
  return record;
}

v1::JobRecord RecordOf(const Job& job) {
  const JobGeneration& current = job.current;
  v1::JobRecord record;
  record.set_job_id(job.id.value());
  record.set_name(job.name);
  *record.mutable_settings() = job.settings;
  record.set_key(job.key);
  record.set_secret_digest(job.secret_digest);
  record.set_generation(current.number.value());
  record.set_plan_version(job.plan_version.value());
  record.set_state(current.state);
  record.set_reason(current.reason);
  record.set_exit_code(current.failure.exit_status);
  record.set_failed_kind(current.failure.name);
  record.set_next_tensor_id(job.next_tensor);
  record.set_next_agreement(job.next_agreement);
  record.set_created_unix_s(absl::ToDoubleSeconds(job.created - absl::UnixEpoch()));
  for (const auto& [rank, incarnation] : current.lost) {
    (*record.mutable_lost())[rank.value()] = incarnation;
  }
  for (const auto& [rank, why] : current.gone) (*record.mutable_gone())[rank.value()] = why;
  return record;
}

v1::NodeRecord RecordOf(const Job& job, const Node& node) {
  v1::NodeRecord record;
  record.set_job_id(job.id.value());
  *record.mutable_registration() = node.info;
  record.set_idle(node.idle);
  return record;
}

v1::AgreementRecord RecordOf(const Job& job, const DeclaredTensor& tensor) {
  v1::AgreementRecord record;
  record.set_job_id(job.id.value());
  record.set_agreement(tensor.agreement);
  record.set_stage(tensor.stage);
  *record.mutable_tensor() = tensor.descriptor;
  record.set_first_node(tensor.first_node.value());
  record.set_declared(tensor.declared.bits());
  record.set_undeclared(tensor.undeclared.bits());
  if (tensor.differing) *record.mutable_differing() = *tensor.differing;
  record.set_differing_node(tensor.differing_node.value());
  if (tensor.stage == Stages::REFUSED) *record.mutable_error() = tensor.error;
  return record;
}

v1::PlanRecord PlanRecordOf(const Job& job, const DeclaredTensor& tensor) {
  v1::PlanRecord record;
  record.set_job_id(job.id.value());
  record.set_agreement(tensor.agreement);
  *record.mutable_plan() = tensor.plan;
  return record;
}

absl::Status Check(const v1::IdsRecord& record) {
  return CheckThat(IsNext(record.next_server_id()) && IsNext(record.next_job_id()), "a number");
}

absl::StatusOr<Server> From(const v1::ServerRecord& record, const Fleet& fleet) {
  ADDEND_RETURN_IF_ERROR(CheckServer(record.registration()));
  Server server;
  server.id = ServerId(record.server_id());
  server.info = record.registration();
  if (server.id == ServerId() || record.server_id() >= fleet.next_number()) {
    return absl::DataLossError("a server whose number was never given");
  }
  const uint64_t limit = server.info.memory_limit_bytes();
  if (limit != 0) server.free_bytes = limit;
  server.draining = record.draining();
  server.secret_digest = record.secret_digest();
  if (server.colocated() &&
      fleet.FindColocated(server.info.colocated_job(), NodeId(server.info.colocated_node()),
                          server.secret_digest) != nullptr) {
    return absl::DataLossError("a second server of one node");
  }
  return server;
}

absl::StatusOr<Job> From(const v1::JobRecord& record, const Jobs& jobs) {
  ADDEND_RETURN_IF_ERROR(Check(record));
  if (record.job_id() >= jobs.next_number() || jobs.Find(record.name()) != nullptr) {
    return absl::DataLossError("a job whose number was never given, or a second of one name");
  }
  Job job;
  job.id = JobId(record.job_id());
  job.name = record.name();
  job.settings = record.settings();
  job.key = record.key();
  job.secret_digest = record.secret_digest();
  job.plan_version = PlanVersion(record.plan_version());
  job.stored_version = record.plan_version();
  job.next_tensor = job.stored_next_tensor = record.next_tensor_id();
  job.first_given_tensor = 0;
  job.next_agreement = record.next_agreement();
  job.created = absl::UnixEpoch() + absl::Seconds(record.created_unix_s());
  JobGeneration& current = job.current;
  current.number = Generation(record.generation());
  current.state = record.state();
  current.reason = record.reason();
  current.failure = {record.failed_kind(), record.exit_code()};
  for (const auto& [rank, incarnation] : record.lost()) current.lost[NodeId(rank)] = incarnation;
  for (const auto& [rank, why] : record.gone()) current.gone[NodeId(rank)] = why;
  return job;
}

absl::StatusOr<Node> From(const v1::NodeRecord& record, const Job& job) {
  ADDEND_RETURN_IF_ERROR(CheckNode(record.registration()));
  ADDEND_RETURN_IF_ERROR(CheckThat(record.registration().job() == job.name &&
                                       record.registration().node_rank() < job.settings.num_nodes(),
                                   "a node of another job"));
  Node node;
  node.rank = NodeId(record.registration().node_rank());
  node.info = record.registration();
  node.idle = record.idle();
  return node;
}

absl::StatusOr<DeclaredTensor> From(const v1::AgreementRecord& record, const Job& job) {
  ADDEND_RETURN_IF_ERROR(Check(record, job));
  DeclaredTensor tensor;
  ADDEND_ASSIGN_OR_RETURN(tensor.participants, job.ParticipantsOf(record.tensor()));
  if (record.has_differing()) {
    ADDEND_ASSIGN_OR_RETURN(const Participants others, job.ParticipantsOf(record.differing()));
    tensor.participants = tensor.participants.UnitedWith(others);
  }
  job.CountNodes(&tensor);
  tensor.agreement = record.agreement();
  tensor.stage = record.stage();
  tensor.descriptor = record.tensor();
  tensor.first_node = NodeId(record.first_node());
  tensor.declared = NodeSet(record.declared());
  tensor.undeclared = NodeSet(record.undeclared());
  if (record.has_differing()) tensor.differing = record.differing();
  tensor.differing_node = NodeId(record.differing_node());
  tensor.error = record.error();
  return tensor;
}

absl::Status Check(const v1::PlanRecord& record, const Job& job, const DeclaredTensor& tensor) {
  const v1::TensorPlan& plan = record.plan();
  const auto count = static_cast<uint64_t>(plan.servers_size());
  const auto shard_fits = [](uint32_t shard) { return shard < kMaxShards; };
  const auto was_planned = [&job](uint64_t version) { return version <= job.plan_version.value(); };
  ADDEND_RETURN_IF_ERROR(CheckThat(plan.tensor_id() != 0 && plan.tensor_id() < job.next_tensor &&
                                       !job.current.tensors.Contains(TensorId(plan.tensor_id())),
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
  ADDEND_RETURN_IF_ERROR(CheckThat(
      !plan.has_relays() ||
          (tensor.participants.all() && IsReduction(static_cast<ReduceOp>(plan.tensor().op())) &&
           IsPossible(plan.relays(), plan.servers_size(), job.settings.num_nodes())),
      "relays"));
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

}  // namespace addend::records
