// Membership: the state that an earlier scheduler stored.
#include <string>

#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"
#include "services/scheduler/membership_scope.h"
#include "services/scheduler/records.h"

namespace addend {
namespace {

using Stages = v1::AgreementRecord;

absl::Status Damaged(std::string_view key) {
  return absl::DataLossError(absl::StrFormat(
      "the store's record '%s' cannot be read or does not fit the others: move the store away and "
      "start the jobs anew",
      key));
}

}  // namespace

// In the order in which the kinds of records depend on each other.
absl::Status Membership::Restore(absl::Time now, std::span<const StoreEntry> entries) {
  Decision ignored;
  event_ = Event{};
  event_.now = now;
  event_.decision = &ignored;
  absl::Status status;
  for (const char* prefix :
       {records::kIds, records::kServerPrefix, records::kJobPrefix, records::kNodePrefix,
        records::kAgreementPrefix, records::kPlanPrefix}) {
    for (const StoreEntry& entry : entries) {
      if (status.ok() && entry.first.starts_with(prefix)) status = RestoreOne(entry);
    }
  }
  event_ = Event{};
  ADDEND_RETURN_IF_ERROR(status);
  for (const auto& [id, job] : jobs_) {
    for (const auto& [agreement, tensor] : job.tensors) {
      const bool planned = tensor.stage == Stages::RESERVING || tensor.stage == Stages::PLANNED;
      if (planned != (tensor.plan.tensor_id() != 0)) {
        return Damaged(records::AgreementKey(id.value(), agreement));
      }
    }
  }
  return absl::OkStatus();
}

// Its member has to find this scheduler first.
Lease Membership::RestoredLease() const {
  Lease lease;
  lease.last_seen = lease.unwatched_since = event_.now + options_.lease;
  return lease;
}

absl::Status Membership::RestoreOne(const StoreEntry& entry) {
  const std::string& key = entry.first;
  const std::string& value = entry.second;
  // `true_key`: under which the scheduler stores such a record.
  const auto restore = [&](auto record, auto true_key, auto take) {
    if (!record.ParseFromString(value) || key != true_key(record)) return Damaged(key);
    return take(record).ok() ? absl::OkStatus() : Damaged(key);
  };
  if (key.starts_with(records::kIds)) {
    return restore(
        v1::IdsRecord(), [](const auto&) { return records::kIds; },
        [this](const v1::IdsRecord& record) {
          ADDEND_RETURN_IF_ERROR(CheckRecord(record));
          next_server_ = record.next_server_id();
          next_job_ = record.next_job_id();
          return absl::OkStatus();
        });
  }
  if (key.starts_with(records::kServerPrefix)) {
    return restore(
        v1::ServerRecord(),
        [](const auto& record) { return records::ServerKey(record.server_id()); },
        [this](const auto& record) { return RestoreServer(record); });
  }
  if (key.starts_with(records::kJobPrefix)) {
    return restore(
        v1::JobRecord(), [](const auto& record) { return records::JobKey(record.job_id()); },
        [this](const auto& record) { return RestoreJob(record); });
  }
  if (key.starts_with(records::kNodePrefix)) {
    return restore(
        v1::NodeRecord(),
        [](const auto& record) {
          return records::NodeKey(record.job_id(), record.registration().node_rank());
        },
        [this](const auto& record) { return RestoreNode(record); });
  }
  if (key.starts_with(records::kAgreementPrefix)) {
    return restore(
        v1::AgreementRecord(),
        [](const auto& record) {
          return records::AgreementKey(record.job_id(), record.agreement());
        },
        [this](const auto& record) { return RestoreAgreement(record); });
  }
  return restore(
      v1::PlanRecord(),
      [](const auto& record) { return records::PlanKey(record.job_id(), record.agreement()); },
      [this](const auto& record) { return RestorePlan(record); });
}

absl::Status Membership::RestoreServer(const v1::ServerRecord& record) {
  ADDEND_RETURN_IF_ERROR(CheckServer(record.registration()));
  Server server;
  server.id = ServerId(record.server_id());
  server.info = record.registration();
  server.lease = RestoredLease();
  if (server.id == ServerId() || record.server_id() >= next_server_) {
    return absl::DataLossError("a server whose number was never given");
  }
  if (server.colocated() &&
      colocated_.contains({server.info.colocated_job(), NodeId(server.info.colocated_node())})) {
    return absl::DataLossError("a second server of one node");
  }
  const uint64_t limit = server.info.memory_limit_bytes();
  if (limit != 0) server.free_bytes = limit;
  server.draining = record.draining();
  server.secret_digest = record.secret_digest();
  AddServer(std::move(server));
  return absl::OkStatus();
}

absl::Status Membership::RestoreJob(const v1::JobRecord& record) {
  ADDEND_RETURN_IF_ERROR(CheckRecord(record));
  if (record.job_id() >= next_job_ || job_by_name_.contains(record.name())) {
    return absl::DataLossError("a job whose number was never given, or a second of one name");
  }
  Job& job = jobs_[JobId(record.job_id())];
  job.id = JobId(record.job_id());
  job.name = record.name();
  job.settings = record.settings();
  job.key = record.key();
  job.secret_digest = record.secret_digest();
  job.generation = Generation(record.generation());
  job.plan_version = PlanVersion(record.plan_version());
  job.state = record.state();
  job.reason = record.reason();
  job.exit_code = record.exit_code();
  job.failed_kind = record.failed_kind();
  job.next_tensor = record.next_tensor_id();
  job.next_agreement = record.next_agreement();
  job.rebalance = PlanReason::kJoin;  // what had been due is not stored
  job.created = absl::UnixEpoch() + absl::Seconds(record.created_unix_s());
  job.forming_since = event_.now;
  // Until a node's record says otherwise.
  job.empty_since = event_.now;
  for (const auto& [rank, incarnation] : record.lost()) job.lost[NodeId(rank)] = incarnation;
  for (const auto& [rank, why] : record.gone()) job.gone[NodeId(rank)] = why;
  job_by_name_[job.name] = job.id;
  return absl::OkStatus();
}

absl::Status Membership::RestoreNode(const v1::NodeRecord& record) {
  const auto job = jobs_.find(JobId(record.job_id()));
  if (job == jobs_.end()) return absl::DataLossError("no such job");
  ADDEND_RETURN_IF_ERROR(CheckRecord(record, job->second));
  const NodeId rank(record.registration().node_rank());
  Node& node = job->second.nodes[rank];
  node.rank = rank;
  node.info = record.registration();
  node.idle = record.idle();
  node.lease = RestoredLease();
  job->second.empty_since.reset();
  return absl::OkStatus();
}

absl::Status Membership::RestoreAgreement(const v1::AgreementRecord& record) {
  const auto job = jobs_.find(JobId(record.job_id()));
  if (job == jobs_.end()) return absl::DataLossError("no such job");
  ADDEND_RETURN_IF_ERROR(CheckRecord(record, job->second));
  Tensor tensor;
  tensor.agreement = record.agreement();
  tensor.stage = record.stage();
  tensor.descriptor = record.tensor();
  tensor.first_node = NodeId(record.first_node());
  tensor.declared = NodeSet(record.declared());
  tensor.undeclared = NodeSet(record.undeclared());
  if (record.has_differing()) tensor.differing = record.differing();
  tensor.differing_node = NodeId(record.differing_node());
  tensor.error = record.error();
  // The records come in ascending order, and so do the agreements on one name.
  job->second.by_name[tensor.descriptor.name()].push_back(tensor.agreement);
  job->second.tensors.emplace(tensor.agreement, std::move(tensor));
  return absl::OkStatus();
}

absl::Status Membership::RestorePlan(const v1::PlanRecord& record) {
  const auto job = jobs_.find(JobId(record.job_id()));
  if (job == jobs_.end()) return absl::DataLossError("no such job");
  const auto found = job->second.tensors.find(record.agreement());
  if (found == job->second.tensors.end()) return absl::DataLossError("no such tensor");
  Tensor& tensor = found->second;
  ADDEND_RETURN_IF_ERROR(CheckRecord(record, job->second, tensor));
  tensor.plan = record.plan();
  job->second.by_tensor_id[tensor.plan.tensor_id()] = tensor.agreement;
  TakeLoad(job->second, tensor);
  // Every server is asked again, by the full update of its first watch.
  if (tensor.stage == Stages::RESERVING) {
    for (const auto& [server, owned] : tensor.owned) tensor.awaited.insert(server);
  } else {
    for (const auto& [server, owned] : tensor.owned) job->second.plan_servers.insert(server);
    for (const v1::PartitionMove& move : tensor.plan.moves()) {
      Change& change = job->second.change;
      change.version = std::max(change.version, PlanVersion(move.version()));
      change.restored = true;
      change.awaited.insert(ServerId(move.server()));
    }
    // Which of the new owners had answered, and whether the nodes were told, is not stored.
    for (int i = 0; i < tensor.plan.versions_size(); ++i) {
      if (tensor.plan.versions(i) != 0) tensor.recovering.insert(ServerId(tensor.plan.servers(i)));
    }
  }
  return absl::OkStatus();
}

}  // namespace addend
