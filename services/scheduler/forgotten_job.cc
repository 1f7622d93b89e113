#include "services/scheduler/forgotten_job.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/auth/job_proof.h"
#include "lib/base/failure.h"
#include "lib/base/limits.h"
#include "lib/base/status_macros.h"
#include "services/scheduler/admission.h"
#include "services/scheduler/records.h"

namespace addend {
namespace {

using Stages = v1::AgreementRecord;

// A scheduler leaves out some versions when it begins (Job::NextPlanVersion), and may do so again
// and again before any node hears of it.
constexpr uint64_t kMostVersionsSkipped = uint64_t{1} << 40;

constexpr std::string_view kLostBefore = "it was lost before the scheduler was started anew";

template <typename Message>
StoreEntry EntryOf(std::string key, const Message& message) {
  return {std::move(key), message.SerializeAsString()};
}

uint64_t VersionOf(const v1::TensorPlan& plan, int partition) {
  return partition < plan.versions_size() ? plan.versions(partition) : 0;
}

}  // namespace

absl::Status ForgottenJob::Take(const v1::RegisterNodeRequest& request) {
  if (memories_.empty()) {
    id_ = request.former_job_id();
    job_.id = JobId(id_);
    job_.name = request.job();
    job_.settings = request.settings();
    job_.secret_digest = auth::DigestOf(request.join_proof());
  } else {
    ADDEND_RETURN_IF_ERROR(CheckNodeOf(request, job_));
  }
  ADDEND_RETURN_IF_ERROR(CheckRoom(request.recollection()));
  const NodeId rank(request.node_rank());
  Node& node = job_.nodes[rank];
  if (node.info.incarnation() != 0) job_.frames.Remove(node.info.protocols());
  node.rank = rank;
  node.info = request;
  node.info.clear_join_proof();
  node.info.clear_recollection();
  job_.frames.Add(request.protocols());
  Memory& memory = memories_[rank];
  memory = Memory();

  const v1::Recollection& told = request.recollection();
  owners_.reset();
  if (told.generation() > generation_) BeginGeneration(told.generation());
  if (told.generation() < generation_) return absl::OkStatus();
  // A node that waits for the next generation is told that this one is FORMING, and a node that the
  // others go on without, that it has failed.
  const auto& lost = told.lost_nodes();
  const bool is_lost = std::find(lost.begin(), lost.end(), rank.value()) != lost.end();
  const bool goes_on = told.state() == v1::FAILED && is_lost && job_.Shrinks();
  state_ = std::max(state_, goes_on ? v1::READY : told.state());
  if (told.state() == v1::FAILED && !goes_on) failure_ = told;
  told_version_ = std::max(told_version_, told.plan_version());
  lost_.insert(told.lost_nodes().begin(), told.lost_nodes().end());
  memory.idle = told.idle();
  memory.undeclared.insert(told.undeclared().begin(), told.undeclared().end());
  memory.removed.insert(told.removed().begin(), told.removed().end());
  for (const uint32_t id : told.removed()) last_removed_ = std::max(last_removed_, id);
  for (const v1::TensorPlan& plan : told.tensors()) {
    memory.tensors.insert(plan.tensor_id());
    Merge(plan);
  }
  return absl::OkStatus();
}

void ForgottenJob::BeginGeneration(uint32_t generation) {
  generation_ = generation;
  state_ = v1::FORMING;
  failure_.Clear();
  told_version_ = plan_version_ = 0;
  plans_.clear();
  partitions_ = 0;
  last_removed_ = 0;
  lost_.clear();
  for (auto& [rank, memory] : memories_) memory = Memory();
}

void ForgottenJob::TakeVersion(uint32_t generation, uint64_t plan_version) {
  if (generation != generation_ || plan_version >= told_version_ + kMostVersionsSkipped) return;
  plan_version_ = std::max(plan_version_, plan_version);
}

// The bounds of any job, so that nobody fills the memory of the scheduler.
absl::Status ForgottenJob::CheckRoom(const v1::Recollection& told) const {
  uint64_t tensors = plans_.size();
  uint64_t partitions = partitions_;
  for (const v1::TensorPlan& plan : told.tensors()) {
    if (plans_.contains(plan.tensor_id())) continue;
    ++tensors;
    partitions += static_cast<uint64_t>(plan.servers_size());
  }
  if (tensors <= kMaxTensors && partitions <= kMaxPartitions) return absl::OkStatus();
  return WithKind(absl::ResourceExhaustedError(absl::StrFormat(
                      "the nodes of job '%s' remember %d tensors of %d partitions, more than a job "
                      "may have",
                      job_.name, tensors, partitions)),
                  FailureKind::kShortage);
}

// Announced moves are given up: all partitions are recovered where they were before.
void ForgottenJob::Merge(const v1::TensorPlan& plan) {
  const auto [found, is_new] = plans_.emplace(plan.tensor_id(), plan);
  v1::TensorPlan& merged = found->second;
  merged.clear_moves();
  merged.clear_relays();  // nodes are told none
  if (is_new) partitions_ += static_cast<uint64_t>(plan.servers_size());
  if (is_new || merged.servers_size() != plan.servers_size() ||
      merged.shards_size() != plan.shards_size()) {
    return;
  }
  for (int i = 0; i < plan.servers_size(); ++i) {
    if (VersionOf(plan, i) <= VersionOf(merged, i)) continue;
    merged.mutable_versions()->Resize(plan.servers_size(), 0);
    merged.set_versions(i, VersionOf(plan, i));
    merged.set_servers(i, plan.servers(i));
    if (i < merged.shards_size()) merged.set_shards(i, plan.shards(i));
  }
}

std::vector<NodeId> ForgottenJob::MissingNodes() const {
  std::vector<NodeId> missing;
  for (uint32_t rank = 0; rank < job_.settings.num_nodes(); ++rank) {
    if (!lost_.contains(rank) && !memories_.contains(NodeId(rank))) missing.emplace_back(rank);
  }
  return missing;
}

const std::set<ServerId>& ForgottenJob::Owners() {
  if (owners_) return *owners_;
  owners_.emplace();
  for (const auto& [id, plan] : plans_) {
    for (const uint32_t server : plan.servers()) owners_->emplace(server);
  }
  return *owners_;
}

void ForgottenJob::NumberOwners(absl::FunctionRef<ServerId(ServerId)> number_of) {
  std::map<ServerId, uint32_t> numbers;
  for (const ServerId owner : Owners()) numbers[owner] = number_of(owner).value();
  owners_.reset();
  for (auto& [id, plan] : plans_) {
    for (uint32_t& server : *plan.mutable_servers()) server = numbers.at(ServerId(server));
  }
}

// Nodes that have not come are lost, so they need no record.
std::vector<StoreEntry> ForgottenJob::Records(const std::string& key, absl::Time now) const {
  std::vector<StoreEntry> entries;
  for (const auto& [rank, node] : job_.nodes) {
    v1::NodeRecord record = records::RecordOf(job_, node);
    record.set_idle(memories_.at(rank).idle);
    entries.push_back(EntryOf(records::NodeKey(id_, rank.value()), record));
  }
  uint64_t agreements = 0;
  for (const auto& [id, plan] : plans_) {
    v1::AgreementRecord agreement;
    if (!Agreed(plan, &agreement)) continue;
    agreement.set_agreement(++agreements);
    v1::PlanRecord planned;
    planned.set_job_id(id_);
    planned.set_agreement(agreements);
    *planned.mutable_plan() = plan;
    entries.push_back(EntryOf(records::AgreementKey(id_, agreements), agreement));
    entries.push_back(EntryOf(records::PlanKey(id_, agreements), planned));
  }
  entries.push_back(EntryOf(records::JobKey(id_), JobRecordOf(key, now, agreements)));
  return entries;
}

// A node that does not know a tensor either has been told of its removal, which takes that it has
// undeclared it, or has declared it and not been told of its plan. False if no node needs it any
// more.
bool ForgottenJob::Agreed(const v1::TensorPlan& plan, v1::AgreementRecord* agreement) const {
  const auto participants = job_.ParticipantsOf(plan.tensor());
  if (!participants.ok()) return true;  // the check of the records says so
  NodeSet declared;
  NodeSet undeclared;
  bool is_needed = false;
  for (const auto& [rank, memory] : memories_) {
    if (!job_.IsAmong(rank, *participants)) continue;
    const bool over =
        (memory.tensors.contains(plan.tensor_id()) ? memory.undeclared : memory.removed)
            .contains(plan.tensor_id());
    declared.Insert(rank);
    if (over) undeclared.Insert(rank);
    is_needed = is_needed || (!over && !lost_.contains(rank.value()));
  }
  agreement->set_job_id(id_);
  agreement->set_stage(Stages::PLANNED);
  *agreement->mutable_tensor() = plan.tensor();
  agreement->set_declared(declared.bits());
  agreement->set_undeclared(undeclared.bits());
  return is_needed;
}

v1::JobRecord ForgottenJob::JobRecordOf(const std::string& key, absl::Time now,
                                        uint64_t agreements) const {
  v1::JobRecord record = records::RecordOf(job_);
  record.set_key(key);
  record.set_generation(std::max<uint32_t>(1, generation_));
  record.set_state(state_);
  record.set_plan_version(std::max(told_version_, plan_version_));
  const uint32_t last_planned = plans_.empty() ? 0 : plans_.rbegin()->first;
  record.set_next_tensor_id(std::max(last_planned, last_removed_) + 1);
  record.set_next_agreement(agreements + 1);
  record.set_created_unix_s(absl::ToDoubleSeconds(now - absl::UnixEpoch()));
  if (state_ == v1::FAILED) {
    record.set_reason(failure_.reason());
    record.set_exit_code(failure_.exit_code());
    record.set_failed_kind(failure_.failed_kind());
  }
  for (const uint32_t rank : lost_) {
    if (rank >= job_.settings.num_nodes()) break;  // no node of the job
    (*record.mutable_gone())[rank] = std::string(kLostBefore);
  }
  return record;
}

}  // namespace addend
