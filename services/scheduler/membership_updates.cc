// Membership: what an event sends and stores. Everything is built from the state at the event's
// end.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "lib/base/exit_codes.h"
#include "services/scheduler/membership_scope.h"
#include "services/scheduler/records.h"

namespace addend {
namespace {

using Stages = v1::AgreementRecord;

template <typename Message>
StoreWrite WriteOf(std::string key, const Message& message) {
  return {std::move(key), message.SerializeAsString()};
}

v1::JobRecord RecordOf(const Job& job) {
  v1::JobRecord record;
  record.set_job_id(job.id.value());
  record.set_name(job.name);
  *record.mutable_settings() = job.settings;
  record.set_key(job.key);
  record.set_secret_digest(job.secret_digest);
  record.set_generation(job.generation.value());
  record.set_plan_version(job.plan_version.value());
  record.set_state(job.state);
  record.set_reason(job.reason);
  record.set_exit_code(job.exit_code);
  record.set_failed_kind(job.failed_kind);
  record.set_next_tensor_id(job.next_tensor);
  record.set_next_agreement(job.next_agreement);
  record.set_created_unix_s(absl::ToDoubleSeconds(job.created - absl::UnixEpoch()));
  for (const auto& [rank, incarnation] : job.lost) {
    (*record.mutable_lost())[rank.value()] = incarnation;
  }
  for (const auto& [rank, why] : job.gone) (*record.mutable_gone())[rank.value()] = why;
  return record;
}

v1::NodeRecord RecordOf(const Job& job, const Node& node) {
  v1::NodeRecord record;
  record.set_job_id(job.id.value());
  *record.mutable_registration() = node.info;
  record.set_idle(node.idle);
  return record;
}

v1::AgreementRecord RecordOf(const Job& job, const Tensor& tensor) {
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

uint64_t VersionOf(const v1::TensorPlan& plan, uint32_t index) {
  return plan.versions().empty() ? 0 : plan.versions(static_cast<int>(index));
}

bool IsRelease(const v1::JobReservation& reservation) {
  return reservation.release_tensors_size() + reservation.release_partitions_size() > 0;
}

}  // namespace

std::map<uint32_t, v1::PartitionMove> MovesOf(const Tensor& tensor) {
  std::map<uint32_t, v1::PartitionMove> moves;
  for (const v1::PartitionMove& move : tensor.plan.moves()) moves[move.partition()] = move;
  return moves;
}

void AddReservation(const Tensor& tensor, ServerId server, const Owned& owned,
                    v1::JobReservation* job) {
  v1::TensorReservation* reservation = job->add_reserve();
  reservation->set_tensor_id(tensor.plan.tensor_id());
  *reservation->mutable_tensor() = tensor.descriptor;
  reservation->set_partition_elements(tensor.plan.partition_elements());
  reservation->mutable_partitions()->Add(owned.partitions.begin(), owned.partitions.end());
  reservation->mutable_shards()->Add(owned.shards.begin(), owned.shards.end());
  const std::map<uint32_t, v1::PartitionMove> moves = MovesOf(tensor);
  if (tensor.plan.versions().empty() && moves.empty()) return;
  for (const uint32_t index : owned.partitions) {
    const auto move = moves.find(index);
    const bool handed_over = move != moves.end() && move->second.server() == server.value();
    reservation->add_handed_over(handed_over);
    reservation->add_versions(handed_over ? move->second.version() : VersionOf(tensor.plan, index));
  }
}

void Membership::Say(std::string reason) { event_.decision->reasons.push_back(std::move(reason)); }

void Membership::Note(std::string_view kind, std::string_view job, std::string text) {
  log_.Add(event_.now, kind, job, text);
  Say(std::move(text));
}

// Of its generation: each further one would be said only to say it.
void Membership::NoteFirstPlan(const Job& job, const Tensor& tensor) {
  if (!job.plan_servers.empty() || tensor.owned.empty()) return;
  const std::vector<const Server*> servers = EligibleServers(job);
  const auto cpu = std::count_if(servers.begin(), servers.end(), [](const Server* server) {
    return !server->colocated() && !server->draining;
  });
  const auto colocated = std::count_if(servers.begin(), servers.end(),
                                       [](const Server* server) { return server->colocated(); });
  Note(event_kind::kPlanned, job.name,
       absl::StrFormat("job '%s': its tensors are shared out over %d CPU servers and %d colocated "
                       "ones (plan version %d)",
                       job.name, cpu, colocated, job.plan_version.value()));
}

void Membership::NextPlanVersion(Job& job, PlanReason reason) {
  job.plan_version = PlanVersion(job.plan_version.value() + 1);
  event_.changed_jobs.insert(job.id);
  ++plan_changes_[reason];
}

v1::NodeUpdate& Membership::Broadcast(const Job& job) { return event_.broadcasts[job.id]; }

v1::NodeUpdate& Membership::Single(const Job& job, NodeId node) {
  return event_.singles[{job.id, node}];
}

// Asks the server to reserve `owned` of the tensor, and notes that it has to answer.
void Membership::AskToHold(const Job& job, const Tensor& tensor, ServerId server,
                           const Owned& owned) {
  AddReservation(tensor, server, owned, ReservationFor(server, job));
  event_.reserved[server].emplace_back(job.id, TensorId(tensor.plan.tensor_id()));
}

// The entry for what the job newly reserves.
v1::JobReservation* Membership::ReservationFor(ServerId server, const Job& job) {
  v1::ServerUpdate& update = event_.server_updates[server];
  for (v1::JobReservation& reservation : *update.mutable_jobs()) {
    if (reservation.job_id() == job.id.value() && !IsRelease(reservation)) {
      return &reservation;
    }
  }
  v1::JobReservation* reservation = update.add_jobs();
  reservation->set_job_id(job.id.value());
  return reservation;
}

// Releases stand in an entry of their own and before all others, so that their memory is free again
// for what is reserved in the same update. No event releases what it has reserved itself: a tensor
// is taken back only when its servers have answered, or are gone. The caller adds a release.
v1::JobReservation* Membership::ReleasesFor(ServerId server, const Job& job) {
  v1::ServerUpdate& update = event_.server_updates[server];
  for (v1::JobReservation& reservation : *update.mutable_jobs()) {
    if (reservation.job_id() == job.id.value() && IsRelease(reservation)) return &reservation;
  }
  update.add_jobs()->set_job_id(job.id.value());
  for (int i = update.jobs_size() - 1; i > 0; --i) update.mutable_jobs()->SwapElements(i, i - 1);
  return update.mutable_jobs(0);
}

void Membership::DescribeJob(const Job& job, v1::JobReservation* reservation) const {
  reservation->set_job_id(job.id.value());
  reservation->set_job_name(job.name);
  reservation->set_generation(job.generation.value());
  reservation->set_plan_version(job.plan_version.value());
  reservation->set_key(job.key);
  reservation->set_num_nodes(job.settings.num_nodes());
  reservation->set_local_size(job.settings.local_size());
  reservation->set_failed(job.state == v1::FAILED);
  reservation->clear_lost_nodes();
  for (const auto& [rank, why] : job.gone) reservation->add_lost_nodes(rank.value());
}

bool Membership::MayUse(const Job& job, const Server& server) const {
  if (!server.colocated()) return true;
  // One that came before its job was not asked for the job's secret.
  return server.info.colocated_job() == job.name && server.secret_digest == job.secret_digest;
}

v1::ServerUpdate Membership::FullServerUpdate(
    const Server& server, std::vector<std::pair<JobId, TensorId>>* reserved) const {
  v1::ServerUpdate update;
  update.set_full(true);
  for (const auto& [job_id, job] : jobs_) {
    if (!MayUse(job, server)) continue;
    v1::JobReservation* reservation = update.add_jobs();
    DescribeJob(job, reservation);
    for (const auto& [agreement, tensor] : job.tensors) {
      const auto owned = tensor.owned.find(server.id);
      if (owned == tensor.owned.end()) continue;
      AddReservation(tensor, server.id, owned->second, reservation);
      AddHandOvers(job, tensor, server.id, reservation);
      reserved->emplace_back(job_id, TensorId(tensor.plan.tensor_id()));
    }
  }
  return update;
}

void Membership::FillState(const Job& job, v1::NodeUpdate* update) const {
  update->set_generation(job.generation.value());
  update->set_state(job.state);
  update->set_reason(job.reason);
  update->set_exit_code(job.exit_code);
  update->set_failed_kind(job.failed_kind);
  update->set_plan_version(job.plan_version.value());
  update->set_change(AnnouncedChange(job));
  update->set_optimal_s_per_byte(job.optimal_s_per_byte);
  update->clear_lost_nodes();
  for (const auto& [rank, why] : job.gone) update->add_lost_nodes(rank.value());
  const auto waiting = std::count_if(job.nodes.begin(), job.nodes.end(), [&job](const auto& node) {
    return node.second.idle && node.second.trainers == job.settings.local_size();
  });
  update->set_waiting_nodes(static_cast<uint32_t>(waiting));
}

void Membership::FillServers(const Job& job, v1::NodeUpdate* update) const {
  update->clear_servers();
  for (const ServerId id : job.plan_servers) {
    const auto found = servers_.find(id);
    if (found == servers_.end()) continue;
    const Server& server = found->second;
    v1::ServerInfo* info = update->add_servers();
    info->set_server_id(id.value());
    info->set_incarnation(server.info.incarnation());
    *info->mutable_endpoints() = server.info.endpoints();
    info->set_shards(server.info.shards());
    info->set_colocated(server.colocated());
    info->set_colocated_node(server.info.colocated_node());
    info->set_hostname(server.info.hostname());
  }
}

v1::NodeUpdate Membership::FullNodeUpdate(const Job& job) const {
  v1::NodeUpdate update;
  update.set_full(true);
  FillState(job, &update);
  FillServers(job, &update);
  for (const auto& [agreement, tensor] : job.tensors) {
    // Where new owners have not answered yet, the nodes are told when they have.
    if (tensor.stage == Stages::PLANNED && tensor.recovering.empty()) {
      *update.add_tensors() = PlanForNodes(job, tensor);
    }
    if (tensor.stage == Stages::REFUSED) *update.add_errors() = tensor.error;
  }
  return update;
}

// An idle node has no trainer whom the tensors and the fate of this generation could concern; but
// it may hold results that others lack, so it hears of new owners. The trainers of one that is gone
// learn that their generation is over.
Membership::SharedUpdate Membership::AsSeenBy(const Job& job, const Node& node,
                                              const SharedUpdate& update) const {
  if (job.state == v1::FORMING || job.TakesPart(node)) return update;
  auto own = std::make_shared<v1::NodeUpdate>(*update);
  own->clear_errors();
  const auto gone = job.gone.find(node.rank);
  if (gone != job.gone.end()) {
    own->clear_tensors();
    own->clear_servers();
    own->clear_removed();
  }
  if (node.idle) {
    own->set_state(v1::FORMING);
    own->set_reason(WaitsForIdle(job));
    own->clear_exit_code();
    own->clear_failed_kind();
  } else {
    own->set_state(v1::FAILED);
    own->set_reason(gone->second);
    own->set_exit_code(kExitTemporary);
    own->set_failed_kind("peer_lost");
  }
  return own;
}

// A node never waits for its token: it comes with the first word of a watch or a generation, and a
// new one long before it expires.
void Membership::SendTo(const Job& job, Node& node, const SharedUpdate& update) {
  if (node.lease.watch == 0) return;
  SharedUpdate seen = AsSeenBy(job, node, update);
  if (update->full() || TokenIsDue(job, node)) {
    auto own = std::make_shared<v1::NodeUpdate>(*seen);
    *own->mutable_token() = NewToken(job, &node);
    seen = std::move(own);
  }
  event_.decision->to_nodes.push_back({node.lease.watch, std::move(seen)});
}

void Membership::Flush() {
  if (event_.decision == nullptr) return;
  FlushServers();
  FlushNodes();
  FlushRecords();
  event_ = Event{};
}

// A server without a watch gets what it missed in the full update of its next one.
void Membership::FlushServers() {
  for (auto& [id, update] : event_.server_updates) {
    const auto found = servers_.find(id);
    if (found == servers_.end() || found->second.lease.watch == 0) continue;
    Server& server = found->second;
    std::vector<std::pair<JobId, TensorId>> reserved = std::move(event_.reserved[id]);
    if (update.full()) {
      reserved.clear();
      update = FullServerUpdate(server, &reserved);
      server.unanswered.clear();
      update.set_drained(Drained(server));
    }
    for (v1::JobReservation& reservation : *update.mutable_jobs()) {
      const auto job = jobs_.find(JobId(reservation.job_id()));
      if (job != jobs_.end()) DescribeJob(job->second, &reservation);
    }
    update.set_update_id(next_update_++);
    if (!reserved.empty()) server.unanswered[update.update_id()] = std::move(reserved);
    event_.decision->to_servers.push_back(
        {server.lease.watch, std::make_shared<const v1::ServerUpdate>(std::move(update))});
  }
}

// The plan in force is that of the version, unless a change to it is still under way.
void Membership::KeepOptimum(Job& job) {
  const std::pair<PlanVersion, size_t> now(job.plan_version, job.gone.size());
  if (job.optimum_of == now || job.change.version != PlanVersion()) return;
  job.optimum_of = now;
  const auto targets = TargetShares(ViewOf(job), 1);
  job.optimal_s_per_byte = targets.ok() ? targets->t_opt_s.value_or(0) : 0;
}

void Membership::FlushNodes() {
  for (auto& [id, job] : jobs_) KeepOptimum(job);
  std::map<JobId, SharedUpdate> fulls;
  for (const auto& [job_id, rank] : event_.full) {
    Job& job = jobs_.at(job_id);
    SharedUpdate& full = fulls[job_id];
    if (full == nullptr) full = std::make_shared<const v1::NodeUpdate>(FullNodeUpdate(job));
    SendTo(job, job.nodes.at(rank), full);
  }
  for (auto& [job_id, update] : event_.broadcasts) {
    Job& job = jobs_.at(job_id);
    FillState(job, &update);
    const auto shared = std::make_shared<const v1::NodeUpdate>(std::move(update));
    for (auto& [rank, node] : job.nodes) {
      if (!event_.full.contains({job_id, rank})) SendTo(job, node, shared);
    }
  }
  for (auto& [key, update] : event_.singles) {
    const auto job = jobs_.find(key.first);
    if (job == jobs_.end() || event_.full.contains(key)) continue;
    const auto node = job->second.nodes.find(key.second);
    if (node == job->second.nodes.end()) continue;
    FillState(job->second, &update);
    SendTo(job->second, node->second, std::make_shared<const v1::NodeUpdate>(std::move(update)));
  }
}

// Deletions first: a key may have been deleted and, by a later step of the event, be written anew.
void Membership::FlushRecords() {
  std::vector<StoreWrite>& writes = event_.decision->writes;
  for (std::string& key : event_.deleted) writes.push_back({std::move(key), std::nullopt});
  if (event_.ids_changed) {
    v1::IdsRecord ids;
    ids.set_next_server_id(next_server_);
    ids.set_next_job_id(next_job_);
    writes.push_back(WriteOf(records::kIds, ids));
  }
  for (const ServerId id : event_.changed_servers) {
    v1::ServerRecord record;
    record.set_server_id(id.value());
    *record.mutable_registration() = servers_.at(id).info;
    record.set_draining(servers_.at(id).draining);
    record.set_secret_digest(servers_.at(id).secret_digest);
    writes.push_back(WriteOf(records::ServerKey(id.value()), record));
  }
  for (const JobId id : event_.changed_jobs) {
    writes.push_back(WriteOf(records::JobKey(id.value()), RecordOf(jobs_.at(id))));
  }
  for (const auto& [id, rank] : event_.changed_nodes) {
    const Job& job = jobs_.at(id);
    writes.push_back(
        WriteOf(records::NodeKey(id.value(), rank.value()), RecordOf(job, job.nodes.at(rank))));
  }
  for (const auto& [id, agreement] : event_.changed_agreements) {
    const Job& job = jobs_.at(id);
    writes.push_back(WriteOf(records::AgreementKey(id.value(), agreement),
                             RecordOf(job, job.tensors.at(agreement))));
  }
  for (const auto& [id, agreement] : event_.changed_plans) {
    v1::PlanRecord record;
    record.set_job_id(id.value());
    record.set_agreement(agreement);
    *record.mutable_plan() = jobs_.at(id).tensors.at(agreement).plan;
    writes.push_back(WriteOf(records::PlanKey(id.value(), agreement), record));
  }
}

}  // namespace addend
