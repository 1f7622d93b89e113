// The updates and records of an event.
#include "services/scheduler/dispatch.h"

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "services/scheduler/job_servers.h"
#include "services/scheduler/records.h"

namespace addend {
namespace {

template <typename Message>
StoreWrite WriteOf(std::string key, const Message& message) {
  return {std::move(key), message.SerializeAsString()};
}

}  // namespace

Decision Dispatch::Make() {
  SendToServers();
  SendToNodes();
  WriteRecords();
  return std::move(decision_);
}

// A server without a watch gets the updates that it missed in the full update of its next watch.
// Until then it owes an answer to them, so that its answer to an earlier update is not taken for
// it.
void Dispatch::SendToServers() {
  for (auto& [id, update] : changes_.updates().servers) {
    Server* const server = fleet_.Find(id);
    if (server == nullptr) continue;
    std::vector<std::pair<JobId, TensorId>> reserved = std::move(changes_.updates().reserved[id]);
    if (server->lease.watch == 0) {
      if (!reserved.empty()) server->unanswered[changes_.NextNumber()] = std::move(reserved);
      continue;
    }
    if (update.full()) {
      reserved.clear();
      update = FullServerUpdate(*server, jobs_, &reserved);
      server->unanswered.clear();
      update.set_drained(IsDrained(*server, jobs_));
    }
    for (v1::JobReservation& reservation : *update.mutable_jobs()) {
      const Job* const job = jobs_.Find(JobId(reservation.job_id()));
      if (job == nullptr) continue;
      FillJob(*job, &reservation);
      FillPeers(fleet_, &reservation);
    }
    update.set_update_id(changes_.NextNumber());
    if (!reserved.empty()) server->unanswered[update.update_id()] = std::move(reserved);
    decision_.to_servers.push_back(
        {server->lease.watch, std::make_shared<const v1::ServerUpdate>(std::move(update))});
  }
}

// The plan in force is that of the version, unless a change to it is still under way.
void Dispatch::KeepOptimum(Job* job) const {
  const std::pair<PlanVersion, size_t> now(job->plan_version, job->current.gone.size());
  if (job->optimum_of == now || job->current.change.under_way()) return;
  if (!job->AllHaveRegistered()) return;
  job->optimum_of = now;
  const auto targets = TargetShares(ViewOf(*job, fleet_, jobs_.size(), {}, 0, Candidates::kAll), 1);
  job->optimal_s_per_byte = targets.ok() ? targets->t_opt_s.value_or(0) : 0;
}

void Dispatch::SendToNodes() {
  Changes::Updates& updates = changes_.updates();
  for (auto& [id, job] : jobs_) KeepOptimum(&job);
  const auto views_of = [](const Job& job, v1::NodeUpdate update) {
    return RelayViews(job.settings.num_nodes(),
                      std::make_shared<const v1::NodeUpdate>(std::move(update)));
  };
  std::map<JobId, RelayViews> fulls;
  for (const auto& [job_id, rank] : updates.full) {
    Job& job = jobs_.at(job_id);
    auto full = fulls.find(job_id);
    if (full == fulls.end()) {
      full = fulls.emplace(job_id, views_of(job, FullNodeUpdate(&job, fleet_))).first;
    }
    SendTo(job, &job.nodes.at(rank), &full->second);
  }
  for (auto& [job_id, update] : updates.broadcasts) {
    Job& job = jobs_.at(job_id);
    FillState(job, &update);
    if (updates.with_servers.contains(job_id)) TellServers(&job, fleet_, &update);
    RelayViews views = views_of(job, std::move(update));
    for (auto& [rank, node] : job.nodes) {
      if (!updates.full.contains({job_id, rank})) SendTo(job, &node, &views);
    }
  }
  for (auto& [key, update] : updates.singles) {
    Job* const job = jobs_.Find(key.first);
    Node* const node = job == nullptr ? nullptr : job->Find(key.second);
    if (node == nullptr || updates.full.contains(key)) continue;
    FillState(*job, &update);
    if (updates.with_all_servers.contains(key)) FillServers(job, fleet_, &update);
    RelayViews views = views_of(*job, std::move(update));
    SendTo(*job, node, &views);
  }
}

// A node never waits for its token: the first update of a watch or of a generation brings it, and a
// new token comes long before it expires.
void Dispatch::SendTo(const Job& job, Node* node, RelayViews* views) {
  if (node->lease.watch == 0) return;
  const SharedUpdate& update = views->For(node->rank);
  SharedUpdate seen = AsSeenBy(job, *node, update);
  if (update->full() || tokens_.IsDue(changes_.now(), job, *node)) {
    auto own = std::make_shared<v1::NodeUpdate>(*seen);
    *own->mutable_token() = tokens_.New(changes_.now(), job, node);
    seen = std::move(own);
  }
  decision_.to_nodes.push_back({node->lease.watch, std::move(seen)});
}

// Deletions first: a key may have been deleted and, by a later step of the event, be written anew.
void Dispatch::WriteRecords() {
  std::vector<StoreWrite>& writes = decision_.writes;
  const Changes::Records& changed = changes_.records();
  for (const std::string& key : changed.deleted) writes.push_back({key, std::nullopt});
  if (changed.ids) writes.push_back(WriteOf(records::kIds, records::RecordOfIds(fleet_, jobs_)));
  for (const ServerId id : changed.servers) {
    writes.push_back(WriteOf(records::ServerKey(id.value()), records::RecordOf(*fleet_.Find(id))));
  }
  for (const JobId id : changed.jobs) {
    writes.push_back(WriteOf(records::JobKey(id.value()), records::RecordOf(jobs_.at(id))));
  }
  for (const auto& [id, rank] : changed.nodes) {
    const Job& job = jobs_.at(id);
    writes.push_back(WriteOf(records::NodeKey(id.value(), rank.value()),
                             records::RecordOf(job, job.nodes.at(rank))));
  }
  for (const auto& [id, agreement] : changed.agreements) {
    const Job& job = jobs_.at(id);
    writes.push_back(WriteOf(records::AgreementKey(id.value(), agreement),
                             records::RecordOf(job, job.current.tensors.at(agreement))));
  }
  for (const auto& [id, agreement] : changed.plans) {
    const Job& job = jobs_.at(id);
    writes.push_back(WriteOf(records::PlanKey(id.value(), agreement),
                             records::PlanRecordOf(job, job.current.tensors.at(agreement))));
  }
}

}  // namespace addend
