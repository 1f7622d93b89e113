#include "services/scheduler/membership.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/auth/job_proof.h"
#include "lib/auth/secret.h"
#include "lib/base/exit_codes.h"
#include "lib/base/status_macros.h"
#include "services/scheduler/membership_scope.h"
#include "services/scheduler/records.h"

namespace addend {
namespace {

absl::Status Unknown(const v1::MemberId& member) {
  return absl::NotFoundError(
      member.server_id() != 0
          ? absl::StrFormat("the scheduler does not know server %d in this incarnation: it has to "
                            "register again",
                            member.server_id())
          : absl::StrFormat("the scheduler does not know node %d of job number %d in this "
                            "incarnation: it has to register again",
                            member.node_rank(), member.job_id()));
}

// Numbers are shown to whoever asks; the key is the member's own.
template <typename Registration>
bool SpeaksFor(const v1::MemberId& member, const Registration& info) {
  return info.incarnation() == member.incarnation() &&
         auth::Same(auth::BytesOf(info.member_key()), auth::BytesOf(member.key()));
}

absl::Status NotTheSame(const std::string& host) {
  return absl::PermissionDeniedError(absl::StrFormat(
      "somebody on %s registers under the number of a member without that member's key", host));
}

bool BesideTheSameNode(const v1::RegisterServerRequest& a, const v1::RegisterServerRequest& b) {
  return a.colocated_job() == b.colocated_job() && a.colocated_node() == b.colocated_node();
}

// Of one heartbeat.
constexpr int kMaxIncidents = 100;
constexpr double kOldestIncidentS = 86'400;

absl::Status RankTaken(const std::string& job, uint32_t rank, const std::string& host) {
  return WithExitCode(absl::AlreadyExistsError(absl::StrFormat(
                          "node rank %d of job '%s' is taken by the agent on %s: give every agent "
                          "its own --node-rank, or stop the other one",
                          rank, job, host)),
                      kExitBadConfiguration);
}

}  // namespace

Membership::Membership(Options options, absl::Time now)
    : options_(std::move(options)),
      started_(now),
      last_tick_(now),
      next_update_(static_cast<uint64_t>(absl::ToUnixMicros(now))) {}

absl::StatusOr<v1::RegisterServerResponse> Membership::RegisterServer(
    absl::Time now, const v1::RegisterServerRequest& request, Decision* decision) {
  Scope scope(this, now, decision);
  ADDEND_RETURN_IF_ERROR(CheckServerRequest(request));
  v1::RegisterServerResponse response;
  response.set_lease_s(absl::ToDoubleSeconds(options_.lease));
  ADDEND_RETURN_IF_ERROR(CheckProof(request));
  for (auto& [id, server] : servers_) {
    if (server.info.incarnation() != request.incarnation()) continue;
    if (server.info.member_key() != request.member_key()) return NotTheSame(request.hostname());
    if (!BesideTheSameNode(server.info, request)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s registers again, beside another node than before: a process stays where it is",
          NameOf(server)));
    }
    server.info = request;
    server.info.clear_join_proof();
    server.lease.last_seen = now;
    event_.changed_servers.insert(id);
    response.set_server_id(id.value());
    return response;
  }
  ADDEND_RETURN_IF_ERROR(ReplaceServer(request));
  Server server;
  server.id = ServerId(next_server_++);
  server.info = request;
  server.info.clear_join_proof();
  server.secret_digest = auth::DigestOf(request.join_proof());
  server.lease.last_seen = now;
  server.lease.unwatched_since = now;
  if (request.memory_limit_bytes() != 0) server.free_bytes = request.memory_limit_bytes();
  response.set_server_id(server.id.value());
  event_.ids_changed = true;
  event_.changed_servers.insert(server.id);
  if (server.colocated()) {
    Say(NameOf(server) + " has joined");  // its node says so to people
  } else {
    Note(event_kind::kJoined, "", NameOf(server) + " has joined");
  }
  AddServer(std::move(server));
  for (auto& [id, job] : jobs_) UpdateForming(job);
  return response;
}

void Membership::AddServer(Server server) {
  if (server.colocated()) {
    colocated_[{server.info.colocated_job(), NodeId(server.info.colocated_node())}] = server.id;
  }
  const ServerId id = server.id;
  servers_.emplace(id, std::move(server));
}

// An earlier start of the same server gives way, if its connection is gone.
absl::Status Membership::ReplaceServer(const v1::RegisterServerRequest& request) {
  if (!request.colocated_job().empty()) {
    const auto found = colocated_.find({request.colocated_job(), NodeId(request.colocated_node())});
    if (found == colocated_.end()) return absl::OkStatus();
    const Server& old = servers_.at(found->second);
    if (Alive(old.lease)) {
      return RankTaken(request.colocated_job(), request.colocated_node(), old.info.hostname());
    }
    RemoveServer(old.id, event_kind::kLost, NameOf(old) + " has been started anew");
    return absl::OkStatus();
  }
  if (request.control_address().empty()) return absl::OkStatus();
  for (const auto& [id, old] : servers_) {
    if (old.colocated() || old.info.control_address() != request.control_address()) continue;
    // One that is not connected has given the address up: two cannot listen there.
    if (old.lease.watch != 0) {
      return WithExitCode(
          absl::AlreadyExistsError(absl::StrFormat(
              "%s already has the address %s: give every summation server its own --listen and "
              "--advertise, or stop the other one",
              NameOf(old), request.control_address())),
          kExitBadConfiguration);
    }
    RemoveServer(id, event_kind::kLost, NameOf(old) + " has been started anew");
    return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::RegisterNodeResponse> Membership::RegisterNode(
    absl::Time now, const v1::RegisterNodeRequest& request, Decision* decision) {
  Scope scope(this, now, decision);
  ADDEND_RETURN_IF_ERROR(CheckNodeRequest(request));
  const NodeId rank(request.node_rank());
  Job* job = FindJob(request.job());
  if (job != nullptr) {
    ADDEND_RETURN_IF_ERROR(CheckSecret(*job, request.node_rank(), request.hostname(),
                                       auth::DigestOf(request.join_proof())));
    ADDEND_RETURN_IF_ERROR(ReplaceNode(*job, request));
  }
  if (job != nullptr && !job->nodes.empty()) {
    ADDEND_RETURN_IF_ERROR(CheckSettings(*job, request));
  }
  if (job == nullptr) {
    ADDEND_RETURN_IF_ERROR(CheckRoomForJob(request.job()));
    job = &CreateJob(request);
  }
  if (job->nodes.empty()) job->settings = request.settings();
  job->empty_since.reset();

  Node& node = job->nodes[rank];
  if (node.info.incarnation() == 0) {
    const auto lost = job->lost.find(rank);
    const bool has_trainers = lost != job->lost.end() && lost->second == request.incarnation();
    node.rank = rank;
    node.idle = job->state != v1::FORMING && !has_trainers;
    node.lease.unwatched_since = now;
    Note(event_kind::kJoined, job->name,
         absl::StrFormat("node %d (on %s) has joined job '%s'", rank.value(), request.hostname(),
                         job->name));
  }
  node.info = request;
  node.info.clear_join_proof();
  node.lease.last_seen = now;
  event_.changed_jobs.insert(job->id);
  event_.changed_nodes.insert({job->id, rank});
  UpdateForming(*job);
  StartNextGenerationIfIdle(*job);

  v1::RegisterNodeResponse response;
  response.set_job_id(job->id.value());
  response.set_generation(job->generation.value());
  *response.mutable_token() = NewToken(*job, &node);
  response.set_lease_s(absl::ToDoubleSeconds(options_.lease));
  return response;
}

// An agent of an earlier incarnation gives way, if its connection is gone.
absl::Status Membership::ReplaceNode(Job& job, const v1::RegisterNodeRequest& request) {
  const auto found = job.nodes.find(NodeId(request.node_rank()));
  if (found == job.nodes.end()) return absl::OkStatus();
  const Node& old = found->second;
  if (old.info.incarnation() == request.incarnation()) {
    if (old.info.member_key() != request.member_key()) return NotTheSame(request.hostname());
    return absl::OkStatus();
  }
  if (Alive(old.lease)) return RankTaken(job.name, request.node_rank(), old.info.hostname());
  RemoveNode(job, old.rank, NameOf(job, old) + " was lost: its agent has been started anew", true);
  return absl::OkStatus();
}

Server* Membership::FindServer(const v1::MemberId& member) {
  const auto found = servers_.find(ServerId(member.server_id()));
  if (found == servers_.end()) return nullptr;
  return SpeaksFor(member, found->second.info) ? &found->second : nullptr;
}

Node* Membership::FindNode(const v1::MemberId& member, Job** job) {
  const auto found = jobs_.find(JobId(member.job_id()));
  if (member.server_id() != 0 || found == jobs_.end()) return nullptr;
  *job = &found->second;
  const auto node = found->second.nodes.find(NodeId(member.node_rank()));
  if (node == found->second.nodes.end()) return nullptr;
  if (!SpeaksFor(member, node->second.info)) return nullptr;
  // Whatever the call is, it is a sign of life.
  node->second.lease.last_seen = std::max(node->second.lease.last_seen, event_.now);
  return &node->second;
}

absl::Status Membership::Heartbeat(absl::Time now, const v1::HeartbeatRequest& request,
                                   Decision* decision) {
  event_.now = now;
  if (Server* server = FindServer(request.member())) {
    server->lease.last_seen = now;
    server->beat = request;
    server->beat.clear_incidents();
    TakeIncidents(request, FindJob(server->info.colocated_job()), decision);
    return absl::OkStatus();
  }
  Job* job = nullptr;
  Node* node = FindNode(request.member(), &job);
  if (node == nullptr) return Unknown(request.member());
  node->beat = request;
  node->beat.clear_incidents();
  TakePaces(now, *job, node->rank, request);
  TakeIncidents(request, job, decision);
  job->nonfinite_unheard.erase(node->rank);
  return absl::OkStatus();
}

// `job`: whose they are, null if there is none.
void Membership::TakeIncidents(const v1::HeartbeatRequest& beat, Job* job, Decision* decision) {
  const int taken = std::min(beat.incidents_size(), kMaxIncidents);
  for (int i = 0; i < taken; ++i) {
    const v1::Incident& incident = beat.incidents(i);
    // Not a number: counts as 0.
    const double age_s = incident.age_s() > 0 ? std::min(incident.age_s(), kOldestIncidentS) : 0;
    const absl::Time when = event_.now - absl::Seconds(age_s);
    log_.AddIncident(when, incident, job == nullptr ? "" : job->name);
    decision->reasons.push_back(log_.events().back().text());
    const bool current = job != nullptr && Generation(beat.generation()) == job->generation;
    if (!current || incident.kind() != event_kind::kNonfinite) continue;
    if (job->first_nonfinite.empty()) {
      for (const auto& [rank, node] : job->nodes) job->nonfinite_unheard.insert(rank);
    }
    if (when < job->first_nonfinite_at) {
      job->first_nonfinite_at = when;
      job->first_nonfinite = log_.events().back().text();
    }
  }
}

absl::Status Membership::Leave(absl::Time now, const v1::MemberId& member, Decision* decision) {
  Scope scope(this, now, decision);
  if (const Server* server = FindServer(member)) {
    RemoveServer(server->id, event_kind::kLeft, NameOf(*server) + " has left");
    return absl::OkStatus();
  }
  Job* job = nullptr;
  const Node* node = FindNode(member, &job);
  if (node == nullptr) return Unknown(member);
  RemoveNode(*job, node->rank, NameOf(*job, *node) + " has left", false);
  return absl::OkStatus();
}

absl::Status Membership::WatchServer(absl::Time now, const v1::MemberId& member, WatchId watch,
                                     Decision* decision) {
  Scope scope(this, now, decision);
  Server* server = FindServer(member);
  if (server == nullptr) return Unknown(member);
  server->lease.last_seen = now;
  if (!server->lease.has_watched && !server->colocated()) {
    for (auto& [id, job] : jobs_) job.rebalance = PlanReason::kJoin;
  }
  StartWatch(&server->lease, watch, {server->id, JobId(), NodeId()});
  // A full update is built from the state at the end of the event, so only its address is noted.
  event_.server_updates[server->id].set_full(true);
  return absl::OkStatus();
}

absl::Status Membership::WatchNode(absl::Time now, const v1::MemberId& member, WatchId watch,
                                   Decision* decision) {
  Scope scope(this, now, decision);
  Job* job = nullptr;
  Node* node = FindNode(member, &job);
  if (node == nullptr) return Unknown(member);
  StartWatch(&node->lease, watch, {ServerId(), job->id, node->rank});
  event_.full.insert({job->id, node->rank});
  UpdateForming(*job);
  return absl::OkStatus();
}

void Membership::StartWatch(Lease* lease, WatchId watch, Watcher watcher) {
  EndWatch(lease, absl::AbortedError("the member has opened another watch"));
  lease->watch = watch;
  lease->has_watched = true;
  watches_[watch] = watcher;
}

void Membership::EndWatch(Lease* lease, absl::Status reason) {
  if (lease->watch == 0) return;
  watches_.erase(lease->watch);
  event_.decision->ended.push_back({lease->watch, std::move(reason)});
  lease->watch = 0;
  lease->unwatched_since = event_.now;
}

Lease* Membership::FindLease(const Watcher& watcher) {
  if (watcher.server != ServerId()) return &servers_.at(watcher.server).lease;
  return &jobs_.at(watcher.job).nodes.at(watcher.node).lease;
}

void Membership::WatchBroke(absl::Time now, WatchId watch) {
  const auto found = watches_.find(watch);
  if (found == watches_.end()) return;
  Lease* lease = FindLease(found->second);
  lease->watch = 0;
  lease->unwatched_since = now;
  watches_.erase(found);
}

void Membership::RemoveServer(ServerId id, std::string_view kind, const std::string& why) {
  const auto found = servers_.find(id);
  EndWatch(&found->second.lease, absl::NotFoundError(why));
  const Server server = std::move(found->second);
  servers_.erase(found);
  if (server.colocated()) {
    colocated_.erase({server.info.colocated_job(), NodeId(server.info.colocated_node())});
  }
  event_.server_updates.erase(id);
  event_.reserved.erase(id);
  event_.changed_servers.erase(id);
  event_.deleted.push_back(records::ServerKey(id.value()));
  if (kind == event_kind::kLost) {
    ++(server.colocated() ? lost_.colocated_servers : lost_.cpu_servers);
  }
  if (server.colocated()) {
    Say(why);  // it ends with its node, of which people hear
  } else {
    Note(kind, "", why);
  }
  for (auto& [job_id, job] : jobs_) {
    ServerGone(job, server, why);
    UpdateForming(job);
  }
}

absl::Status Membership::AckReservation(absl::Time now, const v1::AckReservationRequest& request,
                                        Decision* decision) {
  Scope scope(this, now, decision);
  Server* server = FindServer(request.member());
  if (server == nullptr) return Unknown(request.member());
  server->lease.last_seen = now;
  TakeAnswer(*server, request);
  return absl::OkStatus();
}

// The node that reports, and its job. Null: of another generation, which it will learn by its
// watch.
template <typename Request>
absl::StatusOr<Node*> Membership::Reporter(const Request& request, Job** job) {
  Node* const node = FindNode(request.member(), job);
  if (node == nullptr) return Unknown(request.member());
  return Generation(request.generation()) == (*job)->generation ? node : nullptr;
}

absl::Status Membership::Declare(absl::Time now, const v1::DeclareRequest& request,
                                 Decision* decision) {
  Scope scope(this, now, decision);
  Job* job = nullptr;
  ADDEND_ASSIGN_OR_RETURN(Node* const node, Reporter(request, &job));
  if (node == nullptr) return absl::OkStatus();
  if (job->state != v1::READY || !job->TakesPart(*node)) return absl::OkStatus();
  const PartitionSize partition_size = PartitionSizeOf(*job);
  std::vector<uint64_t> ready;
  for (const v1::TensorDescriptor& tensor : request.tensors()) {
    DeclareOne(*job, *node, tensor, partition_size, &ready);
  }
  PlanAll(*job, ready);
  return absl::OkStatus();
}

absl::Status Membership::Undeclare(absl::Time now, const v1::UndeclareRequest& request,
                                   Decision* decision) {
  Scope scope(this, now, decision);
  Job* job = nullptr;
  ADDEND_ASSIGN_OR_RETURN(Node* const node, Reporter(request, &job));
  if (node == nullptr) return absl::OkStatus();
  std::vector<uint64_t> ready;
  for (const std::string& name : request.names()) UndeclareOne(*job, node->rank, name, &ready);
  PlanAll(*job, ready);
  return absl::OkStatus();
}

absl::Status Membership::ReportTrainers(absl::Time now, const v1::ReportTrainersRequest& request,
                                        Decision* decision) {
  Scope scope(this, now, decision);
  Job* job = nullptr;
  ADDEND_ASSIGN_OR_RETURN(Node* const node, Reporter(request, &job));
  if (node == nullptr) return absl::OkStatus();
  node->trainers = request.initialised();
  UpdateForming(*job);
  // Nodes that take part may let it in.
  if (job->state == v1::READY && node->idle) Broadcast(*job);
  return absl::OkStatus();
}

absl::Status Membership::ReportIdle(absl::Time now, const v1::ReportIdleRequest& request,
                                    Decision* decision) {
  Scope scope(this, now, decision);
  Job* job = nullptr;
  ADDEND_ASSIGN_OR_RETURN(Node* const node, Reporter(request, &job));
  if (node == nullptr) return absl::OkStatus();
  // A generation that never was active has no trainers whose end could matter.
  if (job->state == v1::FORMING || node->idle) return absl::OkStatus();
  node->idle = true;
  node->trainers = 0;
  event_.changed_nodes.insert({job->id, node->rank});
  TellIdleNodes(*job);
  StartNextGenerationIfIdle(*job);
  return absl::OkStatus();
}

absl::Status Membership::ReportFailure(absl::Time now, const v1::ReportFailureRequest& request,
                                       Decision* decision) {
  Scope scope(this, now, decision);
  Job* job = nullptr;
  ADDEND_ASSIGN_OR_RETURN(Node* const node, Reporter(request, &job));
  if (node == nullptr) return absl::OkStatus();
  if (job->gone.contains(node->rank)) return absl::OkStatus();
  // Its agent lives; where all fail, it goes on saying what it holds.
  if (request.kind() == "peer_lost" && Shrinks(*job) && job->state == v1::READY) {
    LoseNode(*job, node->rank, request.reason());
    return absl::OkStatus();
  }
  const uint32_t exit_code =
      request.exit_code() == 0 ? uint32_t{kExitTemporary} : request.exit_code();
  FailJob(*job,
          request.reason().empty() ? NameOf(*node) + " has failed without giving a reason"
                                   : request.reason(),
          exit_code, request.kind().empty() ? "peer_lost" : request.kind());
  return absl::OkStatus();
}

absl::Status Membership::ReportServerLost(absl::Time now,
                                          const v1::ReportServerLostRequest& request,
                                          Decision* decision) {
  Scope scope(this, now, decision);
  Job* job = nullptr;
  ADDEND_ASSIGN_OR_RETURN(Node* const node, Reporter(request, &job));
  if (node == nullptr) return absl::OkStatus();
  const auto found = servers_.find(ServerId(request.server_id()));
  if (found == servers_.end() || job->gone.contains(node->rank)) return absl::OkStatus();
  // A colocated server lives as long as its node.
  if (found->second.colocated()) {
    Accuse(*job, found->second, *node, request.reason());
    JudgeAccused();
    return absl::OkStatus();
  }
  if (!job->plan_servers.contains(found->first)) return absl::OkStatus();
  RemoveServer(found->first, event_kind::kLost,
               absl::StrFormat("%s was lost: %s cannot reach it (%s)", NameOf(found->second),
                               NameOf(*node), request.reason()));
  return absl::OkStatus();
}

absl::Status Membership::AckChange(absl::Time now, const v1::AckChangeRequest& request,
                                   Decision* decision) {
  Scope scope(this, now, decision);
  Job* job = nullptr;
  ADDEND_ASSIGN_OR_RETURN(Node* const node, Reporter(request, &job));
  if (node == nullptr) return absl::OkStatus();
  if (request.change() == 0 || request.change() != job->change.number) return absl::OkStatus();
  (request.following() ? job->change.following : job->change.connected).insert(node->rank);
  return absl::OkStatus();
}

}  // namespace addend
