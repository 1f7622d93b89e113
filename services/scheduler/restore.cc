// The state that an earlier scheduler stored.
#include "services/scheduler/restore.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"
#include "services/scheduler/partition_ledger.h"
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

class Restorer {
 public:
  Restorer(absl::Time now, const Leases& leases, Fleet* fleet, Jobs* jobs)
      : now_(now), leases_(leases), fleet_(*fleet), jobs_(*jobs) {}

  absl::Status Restore(const StoreEntry& entry);

 private:
  absl::Status Take(const v1::IdsRecord& record);
  absl::Status Take(const v1::ServerRecord& record);
  absl::Status Take(const v1::JobRecord& record);
  absl::Status Take(const v1::NodeRecord& record);
  absl::Status Take(const v1::AgreementRecord& record);
  absl::Status Take(const v1::PlanRecord& record);
  absl::StatusOr<Job*> JobOf(uint64_t id);

  const absl::Time now_;
  const Leases& leases_;
  Fleet& fleet_;
  Jobs& jobs_;
};

absl::Status Restorer::Restore(const StoreEntry& entry) {
  const std::string& key = entry.first;
  const std::string& value = entry.second;
  // `true_key`: under which the scheduler stores such a record.
  const auto restore = [&](auto record, auto true_key) {
    if (!record.ParseFromString(value) || key != true_key(record)) return Damaged(key);
    return Take(record).ok() ? absl::OkStatus() : Damaged(key);
  };
  if (key.starts_with(records::kIds)) {
    return restore(v1::IdsRecord(), [](const auto&) { return records::kIds; });
  }
  if (key.starts_with(records::kServerPrefix)) {
    return restore(v1::ServerRecord(),
                   [](const auto& record) { return records::ServerKey(record.server_id()); });
  }
  if (key.starts_with(records::kJobPrefix)) {
    return restore(v1::JobRecord(),
                   [](const auto& record) { return records::JobKey(record.job_id()); });
  }
  if (key.starts_with(records::kNodePrefix)) {
    return restore(v1::NodeRecord(), [](const auto& record) {
      return records::NodeKey(record.job_id(), record.registration().node_rank());
    });
  }
  if (key.starts_with(records::kAgreementPrefix)) {
    return restore(v1::AgreementRecord(), [](const auto& record) {
      return records::AgreementKey(record.job_id(), record.agreement());
    });
  }
  return restore(v1::PlanRecord(), [](const auto& record) {
    return records::PlanKey(record.job_id(), record.agreement());
  });
}

absl::StatusOr<Job*> Restorer::JobOf(uint64_t id) {
  Job* const job = jobs_.Find(JobId(id));
  if (job == nullptr) return absl::DataLossError("no such job");
  return job;
}

absl::Status Restorer::Take(const v1::IdsRecord& record) {
  ADDEND_RETURN_IF_ERROR(records::Check(record));
  fleet_.RestoreNextNumber(record.next_server_id());
  jobs_.RestoreNextNumber(record.next_job_id());
  return absl::OkStatus();
}

absl::Status Restorer::Take(const v1::ServerRecord& record) {
  ADDEND_ASSIGN_OR_RETURN(Server server, records::From(record, fleet_));
  server.lease = leases_.Restored(now_);
  fleet_.Add(std::move(server));
  return absl::OkStatus();
}

absl::Status Restorer::Take(const v1::JobRecord& record) {
  ADDEND_ASSIGN_OR_RETURN(Job job, records::From(record, jobs_));
  job.current.rebalance = PlanReason::kJoin;  // the change that had been due is not stored
  job.current.forming_since = now_;
  job.empty_since = now_;  // until a node's record says otherwise
  jobs_.Restore(std::move(job));
  return absl::OkStatus();
}

absl::Status Restorer::Take(const v1::NodeRecord& record) {
  ADDEND_ASSIGN_OR_RETURN(Job* const job, JobOf(record.job_id()));
  ADDEND_ASSIGN_OR_RETURN(Node node, records::From(record, *job));
  node.lease = leases_.Restored(now_);
  job->frames.Add(node.info.protocols());
  job->empty_since.reset();
  const NodeId rank = node.rank;
  job->nodes[rank] = std::move(node);
  return absl::OkStatus();
}

// The records come in ascending order, and so do the agreements on a name.
absl::Status Restorer::Take(const v1::AgreementRecord& record) {
  ADDEND_ASSIGN_OR_RETURN(Job* const job, JobOf(record.job_id()));
  ADDEND_ASSIGN_OR_RETURN(DeclaredTensor tensor, records::From(record, *job));
  if (IsLossy(tensor.descriptor)) job->current.lossy = true;
  job->current.tensors.Restore(std::move(tensor));
  return absl::OkStatus();
}

absl::Status Restorer::Take(const v1::PlanRecord& record) {
  ADDEND_ASSIGN_OR_RETURN(Job* const job, JobOf(record.job_id()));
  DeclaredTensor* const tensor = job->current.tensors.Find(record.agreement());
  if (tensor == nullptr) return absl::DataLossError("no such tensor");
  ADDEND_RETURN_IF_ERROR(records::Check(record, *job, *tensor));
  tensor->plan = record.plan();
  job->current.tensors.SetId(tensor, TensorId(tensor->plan.tensor_id()));
  PartitionLedger::Enter(job, tensor, &fleet_);
  // Every server is asked again, by the full update of its first watch.
  if (tensor->stage == Stages::RESERVING) {
    tensor->restored = true;
    for (const auto& [server, owned] : tensor->owned) tensor->awaited.insert(server);
    job->current.told.unsettled.insert(tensor->agreement);
    return absl::OkStatus();
  }
  for (const auto& [server, owned] : tensor->owned) job->current.plan_servers.insert(server);
  for (const v1::PartitionMove& move : tensor->plan.moves()) {
    Change& change = job->current.change;
    change.version = std::max(change.version, PlanVersion(move.version()));
    change.restored = change.may_have_been_ordered = true;
    change.awaited.insert(ServerId(move.server()));
  }
  // The store does not know which of the owners had answered, and whether the nodes were told:
  // after TakeAsPublished() first owners may not have answered either. A plan without a later owner
  // was published when all had.
  const auto& versions = tensor->plan.versions();
  const auto is_later = [](uint64_t version) { return version != 0; };
  if (std::any_of(versions.begin(), versions.end(), is_later)) {
    for (const uint32_t server : tensor->plan.servers()) {
      tensor->recovering.insert(ServerId(server));
    }
    job->current.told.unsettled.insert(tensor->agreement);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RestoreRecords(absl::Time now, const Leases& leases,
                            std::span<const StoreEntry> entries, Fleet* fleet, Jobs* jobs) {
  Restorer restorer(now, leases, fleet, jobs);
  // In the order in which the kinds of records depend on each other.
  for (const char* prefix :
       {records::kIds, records::kServerPrefix, records::kJobPrefix, records::kNodePrefix,
        records::kAgreementPrefix, records::kPlanPrefix}) {
    for (const StoreEntry& entry : entries) {
      if (entry.first.starts_with(prefix)) ADDEND_RETURN_IF_ERROR(restorer.Restore(entry));
    }
  }
  for (const auto& [id, job] : *jobs) {
    for (const auto& [agreement, tensor] : job.current.tensors) {
      const bool planned = tensor.stage == Stages::RESERVING || tensor.stage == Stages::PLANNED;
      if (planned != (tensor.plan.tensor_id() != 0)) {
        return Damaged(records::AgreementKey(id.value(), agreement));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace addend
