// Membership: the life of a job. FORMING until all nodes and their trainers are there, READY,
// perhaps FAILED; when all its nodes are idle it starts over as the next generation.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "lib/auth/job_proof.h"
#include "lib/base/exit_codes.h"
#include "services/scheduler/membership_scope.h"
#include "services/scheduler/records.h"

namespace addend {
namespace {

// How often nodes are told anew whom a forming job waits for: n nodes that join one after the other
// would else be told n times each.
constexpr absl::Duration kProgressInterval = absl::Milliseconds(200);
// Nodes that a message names one by one.
constexpr size_t kNodesListed = 8;

// "node 2", "nodes 0, 2 and 3", "nodes 0, 1, 2, 3, 4, 5, 6, 7 and 92 others".
std::string ListNodes(const std::vector<uint32_t>& ranks) {
  if (ranks.size() == 1) return absl::StrFormat("node %d", ranks[0]);
  const bool all = ranks.size() <= kNodesListed;
  const size_t listed = all ? ranks.size() - 1 : kNodesListed;
  const std::string head = absl::StrJoin(ranks.begin(), ranks.begin() + listed, ", ");
  if (all) return absl::StrFormat("nodes %s and %d", head, ranks.back());
  return absl::StrFormat("nodes %s and %d others", head, ranks.size() - listed);
}

}  // namespace

Job* Membership::FindJob(std::string_view name) {
  const auto found = job_by_name_.find(name);
  return found == job_by_name_.end() ? nullptr : &jobs_.at(found->second);
}

Job& Membership::CreateJob(const v1::RegisterNodeRequest& request) {
  const JobId id(next_job_++);
  Job& job = jobs_[id];
  job.id = id;
  job.name = request.job();
  job.settings = request.settings();
  job.key = options_.make_key();
  job.secret_digest = auth::DigestOf(request.join_proof());
  job.created = job.forming_since = event_.now;
  job_by_name_[job.name] = id;
  event_.ids_changed = true;
  event_.changed_jobs.insert(id);
  Note(event_kind::kGeneration, job.name,
       absl::StrFormat("job '%s' begins with %d nodes of %d ranks", job.name,
                       job.settings.num_nodes(), job.settings.local_size()));
  return job;
}

// Its nodes are gone already.
void Membership::RemoveJob(Job& job) {
  DropTensors(job);
  for (const Server* server : EligibleServers(job)) {
    v1::JobReservation* reservation = ReservationFor(server->id, job);
    reservation->Clear();
    reservation->set_job_id(job.id.value());
    reservation->set_generation(job.generation.value());
    reservation->set_release_all(true);
  }
  Note(event_kind::kLeft, job.name, absl::StrFormat("job '%s' has ended", job.name));
  event_.changed_jobs.erase(job.id);
  event_.broadcasts.erase(job.id);
  event_.deleted.push_back(records::JobKey(job.id.value()));
  job_by_name_.erase(job.name);
  jobs_.erase(job.id);
}

void Membership::RemoveNode(Job& job, NodeId rank, const std::string& why, bool lost) {
  const auto found = job.nodes.find(rank);
  Node& node = found->second;
  EndWatch(&node.lease, absl::NotFoundError(why));
  const bool takes_part = job.state != v1::FORMING && job.TakesPart(node);
  const uint64_t incarnation = node.info.incarnation();
  if (lost) job.lost[rank] = incarnation;
  event_.changed_nodes.erase({job.id, rank});
  event_.full.erase({job.id, rank});
  event_.deleted.push_back(records::NodeKey(job.id.value(), rank.value()));
  event_.changed_jobs.insert(job.id);
  // Not moved by the caller's reference: `why` may be built from the node, but is its own string.
  job.nodes.erase(found);
  if (lost) ++lost_.nodes;
  Note(lost ? event_kind::kLost : event_kind::kLeft, job.name,
       absl::StrFormat("job '%s': %s", job.name, why));
  if (job.nodes.empty()) {
    if (!lost) return RemoveJob(job);
    job.empty_since = event_.now;
    if (job.state != v1::FORMING) StartNextGeneration(job);
  } else {
    if (takes_part || job.state == v1::FAILED) LoseNode(job, rank, why);
    if (job.state == v1::READY) Broadcast(job);  // it may have waited for the next generation
    UpdateForming(job);
    TellIdleNodes(job);
    StartNextGenerationIfIdle(job);
  }
  // Its colocated server is of the same process.
  const Server* const server = lost ? ColocatedServer(job, rank) : nullptr;
  if (server != nullptr && server->info.incarnation() == incarnation) {
    RemoveServer(server->id, event_kind::kLost, NameOf(*server) + " was lost with its node");
  }
}

// Its trainers take no part any more: the generation fails, or goes on without them.
void Membership::LoseNode(Job& job, NodeId rank, const std::string& why) {
  job.gone[rank] = why;
  for (auto& [other, node] : job.nodes) node.accusers.erase(rank);
  event_.changed_jobs.insert(job.id);
  TellServers(job);
  Single(job, rank);  // if its agent lives
  if (job.state != v1::READY) return;
  const auto left = std::count_if(job.nodes.begin(), job.nodes.end(),
                                  [&job](const auto& node) { return job.TakesPart(node.second); });
  if (!Shrinks(job) || left == 0) return FailJob(job, why, kExitTemporary, "peer_lost");
  Note(event_kind::kGeneration, job.name,
       absl::StrFormat("job '%s' goes on with %d of %d nodes", job.name, left,
                       job.settings.num_nodes()));
  Broadcast(job);
  job.pace.StartOver(event_.now);
  GoOnWithout(job);
}

// What only waited for a node that is gone.
void Membership::GoOnWithout(Job& job) {
  std::vector<uint64_t> undeclared;
  for (const auto& [agreement, tensor] : job.tensors) {
    if (AllIn(job, tensor.undeclared)) undeclared.push_back(agreement);
  }
  std::vector<uint64_t> ready;
  for (const uint64_t agreement : undeclared) RemoveTensor(job, agreement, &ready);
  for (const auto& [name, agreements] : job.by_name) {
    Evaluate(job, job.tensors.at(agreements.front()), &ready);
  }
  std::sort(ready.begin(), ready.end());
  ready.erase(std::unique(ready.begin(), ready.end()), ready.end());
  PlanAll(job, ready);
}

// Those that may sum for the job learn who takes part, and whether the generation has failed.
void Membership::TellServers(Job& job) {
  for (const Server* server : EligibleServers(job)) ReservationFor(server->id, job);
}

void Membership::FailJob(Job& job, std::string reason, uint32_t exit_code, std::string kind) {
  if (job.state != v1::READY) return;
  job.state = v1::FAILED;
  job.reason = std::move(reason);
  job.exit_code = exit_code;
  job.failed_kind = std::move(kind);
  event_.changed_jobs.insert(job.id);
  TellServers(job);
  Broadcast(job);
  Note(event_kind::kFailed, job.name,
       absl::StrFormat("job '%s' failed in generation %d: %s", job.name, job.generation.value(),
                       job.reason));
}

void Membership::StartNextGenerationIfIdle(Job& job) {
  if (job.state == v1::FORMING || job.nodes.empty()) return;
  for (const auto& [rank, node] : job.nodes) {
    if (!node.idle) return;
  }
  StartNextGeneration(job);
}

void Membership::StartNextGeneration(Job& job) {
  DropTensors(job);
  job.generation = Generation(job.generation.value() + 1);
  job.state = v1::FORMING;
  job.forming_since = event_.now;
  job.reason.clear();
  job.exit_code = 0;
  job.failed_kind.clear();
  job.lost.clear();
  job.gone.clear();
  job.first_nonfinite_at = absl::InfiniteFuture();
  job.first_nonfinite.clear();
  job.nonfinite_unheard.clear();
  event_.changed_jobs.insert(job.id);
  TellServers(job);
  for (auto& [rank, node] : job.nodes) {
    node.idle = false;
    node.trainers = 0;
    node.accusers.clear();
    event_.changed_nodes.insert({job.id, rank});
    event_.full.insert({job.id, rank});
  }
  Note(event_kind::kGeneration, job.name,
       absl::StrFormat("job '%s' begins generation %d", job.name, job.generation.value()));
  UpdateForming(job);
}

// Idle nodes see whom the next generation waits for.
void Membership::TellIdleNodes(Job& job) {
  if (job.state == v1::FORMING) return;
  for (const auto& [rank, node] : job.nodes) {
    if (node.idle) Single(job, rank);
  }
}

void Membership::UpdateForming(Job& job) {
  if (job.state != v1::FORMING || job.nodes.empty()) return;
  std::string reason = WaitsFor(job);
  if (reason.empty()) {
    job.state = v1::READY;
    job.reason.clear();
    job.forming_changed = false;
    for (auto& [rank, node] : job.nodes) node.idle = false;
    event_.changed_jobs.insert(job.id);
    Broadcast(job);
    Note(event_kind::kGeneration, job.name,
         absl::StrFormat("job '%s' is ready: all %d nodes and their trainers are there", job.name,
                         job.nodes.size()));
    return;
  }
  if (reason == job.reason) return;
  job.reason = std::move(reason);
  job.forming_changed = event_.now - job.forming_told < kProgressInterval;
  if (job.forming_changed) return;
  job.forming_told = event_.now;
  Broadcast(job);
}

// Empty when all nodes and their trainers are there.
std::string Membership::WaitsFor(const Job& job) const {
  std::vector<uint32_t> missing;
  std::vector<uint32_t> unwatched;
  std::vector<uint32_t> without_server;
  std::vector<uint32_t> without_trainers;
  const uint32_t n = job.settings.num_nodes();
  for (uint32_t rank = 0; rank < n; ++rank) {
    const auto node = job.nodes.find(NodeId(rank));
    if (node == job.nodes.end()) {
      missing.push_back(rank);
    } else if (node->second.lease.watch == 0) {
      unwatched.push_back(rank);
    } else if (node->second.info.colocated_server_id() != 0 &&
               ColocatedServer(job, NodeId(rank)) == nullptr) {
      without_server.push_back(rank);
    } else if (node->second.trainers < job.settings.local_size()) {
      without_trainers.push_back(rank);
    }
  }
  const auto sentence = [n](const std::vector<uint32_t>& ranks, std::string_view what) {
    return absl::StrFormat("waiting for %s of %d (ranks 0..%d): %s", ListNodes(ranks), n, n - 1,
                           what);
  };
  if (!missing.empty()) return sentence(missing, "not registered");
  if (!unwatched.empty()) return sentence(unwatched, "registered, but not connected");
  if (!without_server.empty()) {
    return sentence(without_server, "the colocated summation server is not registered");
  }
  if (without_trainers.size() == 1 && job.settings.local_size() > 1) {
    return sentence(without_trainers,
                    absl::StrFormat("agent connected, %d of %d trainers initialised",
                                    job.nodes.at(NodeId(without_trainers[0])).trainers,
                                    job.settings.local_size()));
  }
  if (!without_trainers.empty()) {
    return sentence(without_trainers, "agent connected, trainer not initialised");
  }
  return "";
}

std::string Membership::WaitsForIdle(const Job& job) const {
  std::vector<uint32_t> active;
  for (const auto& [rank, node] : job.nodes) {
    if (!node.idle) active.push_back(rank.value());
  }
  if (active.empty()) return "";
  return absl::StrFormat("waiting for the trainers of generation %d on %s to end",
                         job.generation.value(), ListNodes(active));
}

// By job and rank and not by the id that the agent gave: after a restart of a scheduler without a
// store, agents still give the ids of the former one.
const Server* Membership::ColocatedServer(const Job& job, NodeId node) const {
  const auto found = colocated_.find({job.name, node});
  if (found == colocated_.end()) return nullptr;
  const Server& server = servers_.at(found->second);
  return MayUse(job, server) ? &server : nullptr;
}

// Who may sum for the job: the colocated servers of its nodes by rank, then the CPU servers by id.
std::vector<const Server*> Membership::EligibleServers(const Job& job) const {
  std::vector<const Server*> servers;
  for (uint32_t rank = 0; rank < job.settings.num_nodes(); ++rank) {
    const auto node = job.nodes.find(NodeId(rank));
    if (node == job.nodes.end() || node->second.info.colocated_server_id() == 0) continue;
    if (const Server* server = ColocatedServer(job, NodeId(rank))) servers.push_back(server);
  }
  for (const auto& [id, server] : servers_) {
    if (!server.colocated()) servers.push_back(&server);
  }
  return servers;
}

}  // namespace addend
