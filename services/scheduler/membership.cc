// The events of the scheduler.
#include "services/scheduler/membership.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/failure.h"
#include "lib/base/status_macros.h"
#include "services/scheduler/admission.h"
#include "services/scheduler/declarations.h"
#include "services/scheduler/dispatch.h"
#include "services/scheduler/encodings.h"
#include "services/scheduler/handover.h"
#include "services/scheduler/heartbeats.h"
#include "services/scheduler/job_servers.h"
#include "services/scheduler/lifecycle.h"
#include "services/scheduler/measured_racks.h"
#include "services/scheduler/placement.h"
#include "services/scheduler/relays.h"
#include "services/scheduler/replacement.h"
#include "services/scheduler/reservations.h"
#include "services/scheduler/restore.h"
#include "services/scheduler/roster.h"
#include "services/scheduler/stale_store.h"
#include "services/scheduler/stragglers.h"

namespace addend {
namespace {

// The most jobs whose numbers a member tells: more than a scheduler has. Each is looked up under
// the owner's lock.
constexpr int kMaxAnnounced = 1 << 14;

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

absl::Status CheckAnnounced(const v1::WatchRequest& request) {
  if (request.announced_size() <= kMaxAnnounced) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "a watch tells the numbers of %d jobs, more than the %d that a scheduler takes",
      request.announced_size(), kMaxAnnounced));
}

}  // namespace

Membership::Membership(Options options, absl::Time now)
    : rules_{std::move(options.servers_digest), std::move(options.make_key)},
      process_{std::move(options.version), std::move(options.store), now},
      react_to_stragglers_(options.react_to_stragglers),
      tokens_(options.token_lifetime, std::move(options.token_clock)),
      leases_(options.lease, now),
      reunion_(rules_.make_key),
      places_(std::move(options.network_places)),
      network_(options.measure_network),
      numbers_(now) {
  jobs_.RestoreNextNumber(options.first_job_number);
}

absl::Status Membership::Restore(absl::Time now, std::span<const StoreEntry> entries) {
  restored_ = true;
  return RestoreRecords(now, leases_, entries, &fleet_, &jobs_);
}

template <typename Body>
auto Membership::Run(absl::Time now, const Body& body) {
  Changes changes(now, &history_, &numbers_);
  auto answer = body(&changes);
  return Outcome<decltype(answer)>{std::move(answer), Finish(&changes)};
}

template <typename Request, typename Body>
Outcome<absl::Status> Membership::Report(absl::Time now, const Request& request, const Body& body) {
  return Run(now, [&](Changes* changes) -> absl::Status {
    Job* job = nullptr;
    Node* const node = FindNode(now, request.member(), &job);
    if (node == nullptr) return Unknown(request.member());
    if (Generation(request.generation()) == job->current.number) body(job, node, changes);
    return absl::OkStatus();
  });
}

// Whatever an event has brought, failed generations and planned changes go as far as they can.
Decision Membership::Finish(Changes* changes) {
  bool untold = false;
  for (auto& [id, job] : jobs_) {
    Lifecycle(ScopeOf(job, *changes)).TellIfAllDecided();
    Declarations(ScopeOf(job, *changes)).GoOnWithServers();
    Placement(ScopeOf(job, *changes)).PublishAnswered();
    Handover handover(ScopeOf(job, *changes));
    handover.Advance();
    handover.Plan();
    untold |= !job.current.told.answered.empty();
  }
  TellDrained(changes);
  Decision decision = Dispatch(tokens_, &fleet_, &jobs_, changes).Make();
  decision.look_soon = untold;
  return decision;
}

void Membership::TellDrained(Changes* changes) {
  for (const ServerId id : fleet_.draining()) {
    Server& server = *fleet_.Find(id);
    if (server.drained_told || !IsDrained(server, jobs_)) continue;
    server.drained_told = true;
    changes->SendDrained(id);
    changes->Note(event_kind::kDrained, "", NameOf(server) + " is drained");
  }
}

Outcome<absl::StatusOr<v1::RegisterServerResponse>> Membership::RegisterServer(
    absl::Time now, const v1::RegisterServerRequest& request) {
  return Run(now, [&](Changes* changes) -> absl::StatusOr<v1::RegisterServerResponse> {
    ADDEND_RETURN_IF_ERROR(CheckServerRequest(request));
    ADDEND_RETURN_IF_ERROR(CheckServerOf(request, jobs_, rules_.servers_digest));
    ADDEND_RETURN_IF_ERROR(reunion_.Admit(request, StateOf(changes)));
    return Registration(rules_, tokens_, &fleet_, &jobs_, &leases_, changes)
        .RegisterServer(WithPlace(places_, request));
  });
}

Outcome<absl::StatusOr<v1::RegisterNodeResponse>> Membership::RegisterNode(
    absl::Time now, const v1::RegisterNodeRequest& request) {
  return Run(now, [&](Changes* changes) -> absl::StatusOr<v1::RegisterNodeResponse> {
    ADDEND_RETURN_IF_ERROR(CheckNodeRequest(request));
    ADDEND_RETURN_IF_ERROR(reunion_.Admit(request, StateOf(changes)));
    return Registration(rules_, tokens_, &fleet_, &jobs_, &leases_, changes)
        .RegisterNode(WithPlace(places_, request));
  });
}

Server* Membership::FindServer(const v1::MemberId& member) {
  Server* const server = fleet_.Find(ServerId(member.server_id()));
  return server != nullptr && SpeaksFor(member, server->info) ? server : nullptr;
}

// Every call of a node is a sign of life.
Node* Membership::FindNode(absl::Time now, const v1::MemberId& member, Job** job) {
  if (member.server_id() != 0) return nullptr;
  *job = jobs_.Find(JobId(member.job_id()));
  Node* const node = *job == nullptr ? nullptr : (*job)->Find(NodeId(member.node_rank()));
  if (node == nullptr || !SpeaksFor(member, node->info)) return nullptr;
  node->lease.last_seen = std::max(node->lease.last_seen, now);
  return node;
}

// Heartbeats are frequent. A heartbeat that changes nothing for other members costs no walk over
// the jobs.
Outcome<absl::Status> Membership::Heartbeat(absl::Time now, const v1::HeartbeatRequest& request) {
  Changes changes(now, &history_, &numbers_);
  if (Server* const server = FindServer(request.member())) {
    server->lease.last_seen = now;
    server->beat = ShownOf(request);
    TakeIncidents(request, jobs_.Find(server->info.colocated_job()), &changes);
    if (TakeTroubles(*server, request.troubles(), &changes)) {
      return {absl::OkStatus(), Finish(&changes)};
    }
    return {absl::OkStatus(), changes.TakeDecision()};
  }
  Job* job = nullptr;
  Node* const node = FindNode(now, request.member(), &job);
  if (node == nullptr) return {Unknown(request.member()), Decision()};
  node->beat = ShownOf(request);
  TakePaces(now, node->rank, request, job);
  TakeWireBytes(node->rank, request, job);
  TakeIncidents(request, job, &changes);
  JobGeneration& current = job->current;
  const Server* const colocated = FindServer(request.colocated().member());
  if (colocated != nullptr && TakeTroubles(*colocated, request.colocated().troubles(), &changes)) {
    return {absl::OkStatus(), Finish(&changes)};
  }
  current.nonfinite.OnHeartbeat(node->rank);
  const bool is_current = Generation(request.generation()) == current.number;
  // It may come before the failure itself is reported.
  const bool decided = is_current && request.decided() && current.decided.insert(node->rank).second;
  if (decided) return {absl::OkStatus(), Finish(&changes)};
  if (!is_current || current.state != v1::READY) return {absl::OkStatus(), changes.TakeDecision()};
  const bool asks = request.pause() != 0 && job->TakesPart(*node);
  if (asks) changes.Single(job->id, node->rank).set_confirmed_pause(request.pause());
  const bool departed = current.departures.Take(node->rank, request);
  const Standstill::News news =
      current.standstill.Take(*job, node->rank, request, now, [&] { return changes.NextNumber(); });
  const bool told = departed || news.told || news.clash;
  if (!told && !asks) return {absl::OkStatus(), changes.TakeDecision()};
  if (told) changes.Broadcast(job->id);
  if (news.clash) Declarations(ScopeOf(*job, changes)).RefuseClash(*news.clash);
  return {absl::OkStatus(), Finish(&changes)};
}

// A relay cannot send its sums. True: a job goes on without relays.
bool Membership::TakeTroubles(const Server& server, const Troubles& troubles, Changes* changes) {
  bool any = false;
  for (const v1::RelayTrouble& trouble : troubles) {
    Job* const job = jobs_.Find(JobId(trouble.job_id()));
    if (job == nullptr || !RelaysFor(server.id, *job)) continue;
    Replacement(ScopeOf(*job, *changes))
        .EndRelays(absl::StrFormat("%s, which relays contributions, cannot send their sums: %s",
                                   NameOf(server), trouble.reason()));
    any = true;
  }
  return any;
}

namespace {

bool HasDataNetwork(const Server* server) {
  if (server == nullptr) return false;
  const std::string calls = NumericHost(server->info.control_address());
  const auto& endpoints = server->info.endpoints();
  return std::any_of(endpoints.begin(), endpoints.end(), [&](const v1::DataEndpoint& endpoint) {
    return endpoint.transport() == "tcp" && endpoint.host() != calls;
  });
}

}  // namespace

bool Membership::TakeColocated(absl::Time now, const v1::HeartbeatRequest& request) {
  if (!request.has_colocated()) return false;
  Server* const server = FindServer(request.colocated().member());
  // A server that is not known will ask for itself.
  if (server == nullptr || !server->colocated()) return false;
  server->lease.last_seen = now;
  server->beat = ShownOf(request.colocated());
  return true;
}

void Membership::ExchangeProbes(absl::Time now, const v1::HeartbeatRequest& request,
                                v1::HeartbeatResponse* response) {
  std::string address;
  if (const Server* const server = FindServer(request.member())) {
    const v1::RegisterServerRequest& info = server->info;
    address = info.control_address();
    if (!server->colocated()) {
      network_.Hear(now, {NameOf(*server), address, info.hostname(), info.place(),
                          info.bandwidth_bps(), HasDataNetwork(server)});
    }
  } else {
    Job* job = nullptr;
    const Node* const node = FindNode(now, request.member(), &job);
    if (node == nullptr) return;
    const v1::RegisterNodeRequest& info = node->info;
    address = info.control_address();
    network_.Hear(now, {absl::StrFormat("node %d of %s", node->rank.value(), job->name), address,
                        info.hostname(), info.place(), info.bandwidth_bps(),
                        HasDataNetwork(fleet_.Find(ServerId(info.colocated_server_id())))});
  }
  network_.Take(now, address, request.probes());
  network_.Choose(now, address, response->mutable_probe());
}

Outcome<absl::StatusOr<v1::NumberNodeResponse>> Membership::NumberNode(
    absl::Time now, const v1::NumberNodeRequest& request) {
  return Run(now, [&](Changes*) -> absl::StatusOr<v1::NumberNodeResponse> {
    const v1::RegisterNodeRequest node = WithPlace(places_, request.node());
    ADDEND_RETURN_IF_ERROR(CheckNodeRequest(node));
    const Job* const job = jobs_.Find(node.job());
    if (job != nullptr) ADDEND_RETURN_IF_ERROR(CheckNodeOf(node, *job));
    network_.Hear(
        now, {absl::StrFormat("a node of %s", node.job()), node.control_address(), node.hostname(),
              node.place(), node.bandwidth_bps(), /*has_data_network=*/true});  // not known yet
    return numbering_.Ask(now, request, job, &network_);
  });
}

Outcome<absl::Status> Membership::Leave(absl::Time now, const v1::MemberId& member) {
  return Run(now, [&](Changes* changes) { return LeaveServerOrNode(member, changes); });
}

absl::Status Membership::LeaveServerOrNode(const v1::MemberId& member, Changes* changes) {
  Roster roster(&fleet_, &jobs_, &leases_, changes);
  if (const Server* server = FindServer(member)) {
    roster.RemoveServer(server->id, event_kind::kLeft, NameOf(*server) + " has left");
    return absl::OkStatus();
  }
  Job* job = nullptr;
  const Node* node = FindNode(changes->now(), member, &job);
  if (node == nullptr) return Unknown(member);
  roster.RemoveNode(job, node->rank, NameOf(*job, *node) + " has left", false);
  return absl::OkStatus();
}

Outcome<absl::Status> Membership::Drain(absl::Time now, const v1::DrainRequest& request) {
  return Run(now, [&](Changes* changes) { return DrainServer(request, changes); });
}

absl::Status Membership::DrainServer(const v1::DrainRequest& request, Changes* changes) {
  Server* const server = fleet_.Find(ServerId(request.server_id()));
  if (server == nullptr) {
    return absl::NotFoundError(
        absl::StrFormat("there is no server %d: addendctl status lists them", request.server_id()));
  }
  if (server->colocated()) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s cannot be drained: it lives as long as its agent", NameOf(*server)));
  }
  ADDEND_RETURN_IF_ERROR(CheckDrain(request, *server, rules_.servers_digest));
  if (server->draining) return absl::OkStatus();
  fleet_.Drain(server);
  changes->Store(server->id);
  for (auto& [id, job] : jobs_) {
    job.current.rebalance = PlanReason::kDrain;
    if (!RelaysFor(server->id, job)) continue;
    Replacement(ScopeOf(job, *changes)).EndRelays(NameOf(*server) + " is being drained");
  }
  changes->Note(event_kind::kDrained, "", NameOf(*server) + " is being drained");
  return absl::OkStatus();
}

Outcome<absl::Status> Membership::WatchServer(absl::Time now, const v1::WatchRequest& request,
                                              WatchId watch) {
  return Run(now, [&](Changes* changes) -> absl::Status {
    ADDEND_RETURN_IF_ERROR(CheckAnnounced(request));
    Server* const server = FindServer(request.member());
    if (server == nullptr) return Unknown(request.member());
    server->lease.last_seen = now;
    if (!server->lease.has_watched && !server->colocated()) {
      for (auto& [id, job] : jobs_) job.current.rebalance = PlanReason::kJoin;
    }
    leases_.Open(watch, {server->id, JobId(), NodeId()}, &server->lease, changes);
    changes->SendAll(server->id);
    for (const v1::Announced& told : request.announced()) {
      Job* const job = jobs_.Find(JobId(told.job_id()));
      if (job != nullptr) StaleStore(ScopeOf(*job, *changes)).CompareWithServer(*server, told);
    }
    return absl::OkStatus();
  });
}

Outcome<absl::Status> Membership::WatchNode(absl::Time now, const v1::WatchRequest& request,
                                            WatchId watch) {
  return Run(now, [&](Changes* changes) -> absl::Status {
    Job* job = nullptr;
    Node* const node = FindNode(now, request.member(), &job);
    if (node == nullptr) return Unknown(request.member());
    leases_.Open(watch, {ServerId(), job->id, node->rank}, &node->lease, changes);
    changes->SendAll(job->id, node->rank);
    const JobScope scope = ScopeOf(*job, *changes);
    if (request.announced_size() > 0) {
      StaleStore(scope).CompareWithNode(request.announced(0));
      Handover(scope).TakeAnnounced(*node, request.announced(0));
    }
    Lifecycle(scope).UpdateForming();
    return absl::OkStatus();
  });
}

void Membership::WatchBroke(absl::Time now, WatchId watch) {
  const auto watcher = leases_.Broke(watch);
  if (!watcher) return;
  Lease& lease = watcher->server != ServerId()
                     ? fleet_.Find(watcher->server)->lease
                     : jobs_.at(watcher->job).nodes.at(watcher->node).lease;
  lease.watch = 0;
  lease.unwatched_since = now;
}

Outcome<absl::Status> Membership::AckReservation(absl::Time now,
                                                 const v1::AckReservationRequest& request) {
  return Run(now, [&](Changes* changes) -> absl::Status {
    Server* const server = FindServer(request.member());
    if (server == nullptr) return Unknown(request.member());
    server->lease.last_seen = now;
    Reservations(&fleet_, &jobs_, changes).TakeAnswer(request, server);
    return absl::OkStatus();
  });
}

Outcome<absl::Status> Membership::Declare(absl::Time now, const v1::DeclareRequest& request) {
  return Report(now, request, [&](Job* job, Node* node, Changes* changes) {
    if (job->current.state != v1::READY || !job->TakesPart(*node)) return;
    auto& racks = job->current.relaying.racks;
    // Once in a generation: it takes as long as all pairs of 64 hosts.
    if (!racks && job->current.tensors.empty() && request.tensors_size() > 0) {
      racks = MeasuredRacks(*job, network_);
    }
    Declarations declarations(ScopeOf(*job, *changes));
    for (int i = 0; i < request.tensors_size(); ++i) {
      const uint32_t number = i < request.numbers_size() ? request.numbers(i) : 0;
      declarations.Declare(node->rank, request.tensors(i), number);
    }
    declarations.Plan();
  });
}

Outcome<absl::Status> Membership::Undeclare(absl::Time now, const v1::UndeclareRequest& request) {
  return Report(now, request, [&](Job* job, Node* node, Changes* changes) {
    Declarations declarations(ScopeOf(*job, *changes));
    for (const std::string& name : request.names()) declarations.Undeclare(node->rank, name);
    declarations.Plan();
  });
}

Outcome<absl::Status> Membership::ReportTrainers(absl::Time now,
                                                 const v1::ReportTrainersRequest& request) {
  return Report(now, request, [&](Job* job, Node* node, Changes* changes) {
    node->trainers = request.initialised();
    Lifecycle(ScopeOf(*job, *changes)).UpdateForming();
    // Nodes that take part may let it in.
    if (job->current.state == v1::READY && node->idle) changes->Broadcast(job->id);
  });
}

Outcome<absl::Status> Membership::ReportIdle(absl::Time now, const v1::ReportIdleRequest& request) {
  return Report(now, request, [&](Job* job, Node* node, Changes* changes) {
    // A generation that never was active has no trainers whose end could matter.
    if (job->current.state == v1::FORMING || node->idle) return;
    node->idle = true;
    node->trainers = 0;
    changes->Store(job->id, node->rank);
    Lifecycle lifecycle(ScopeOf(*job, *changes));
    lifecycle.TellIdleNodes();
    lifecycle.StartNextGenerationIfIdle();
  });
}

Outcome<absl::Status> Membership::ReportFailure(absl::Time now,
                                                const v1::ReportFailureRequest& request) {
  return Report(now, request, [&](Job* job, Node* node, Changes* changes) {
    if (job->current.gone.contains(node->rank)) return;
    // Its agent lives; where all fail, it goes on reporting the results that it holds.
    if (request.kind() == TraitsOf(FailureKind::kPeerLost).name && job->Shrinks() &&
        job->current.state == v1::READY) {
      return Roster(&fleet_, &jobs_, &leases_, changes).LoseNode(job, node->rank, request.reason());
    }
    ToldFailure told = TellFailure(FailureKind::kPeerLost);
    if (!request.kind().empty()) told.name = request.kind();
    if (request.exit_code() != 0) told.exit_status = request.exit_code();
    Lifecycle(ScopeOf(*job, *changes))
        .Fail(request.reason().empty() ? NameOf(*node) + " has failed without giving a reason"
                                       : request.reason(),
              std::move(told));
  });
}

Outcome<absl::Status> Membership::ReportServerLost(absl::Time now,
                                                   const v1::ReportServerLostRequest& request) {
  return Report(now, request, [&](Job* job, Node* node, Changes* changes) {
    Server* const server = fleet_.Find(ServerId(request.server_id()));
    if (server == nullptr || job->current.gone.contains(node->rank)) return;
    Roster roster(&fleet_, &jobs_, &leases_, changes);
    if (request.reached()) return roster.Withdraw(job, *server, node->rank);
    // A colocated server lives as long as its node.
    if (server->colocated()) return roster.AccuseNode(job, *server, *node, request.reason());
    if (!job->current.plan_servers.contains(server->id)) return;
    roster.AccuseServer(job, server, *node, request.reason());
  });
}

Outcome<absl::Status> Membership::AckChange(absl::Time now, const v1::AckChangeRequest& request) {
  return Report(now, request, [&](Job* job, Node* node, Changes*) {
    Change& change = job->current.change;
    if (request.change() == 0 || request.change() != change.number) return;
    (request.following() ? change.following : change.connected).insert(node->rank);
  });
}

Outcome<absl::Time> Membership::Tick(absl::Time now) {
  return Run(now, [&](Changes* changes) {
    const absl::Duration gap = leases_.ForgiveGap(now, &fleet_, &jobs_);
    if (gap > absl::ZeroDuration()) {
      changes->Say(absl::StrFormat("the scheduler did not run for %s; leases are prolonged by that",
                                   absl::FormatDuration(absl::Trunc(gap, absl::Milliseconds(1)))));
      reunion_.Prolong(gap);
    }
    Roster roster(&fleet_, &jobs_, &leases_, changes);
    if (std::exchange(restored_, false)) roster.LoseForgotten();
    reunion_.Tick(StateOf(changes));
    roster.EndLeases();
    for (auto& [id, job] : jobs_) {
      Stragglers(ScopeOf(job, *changes)).Follow(react_to_stragglers_);
      Encodings(ScopeOf(job, *changes)).Follow();
      for (const auto& [rank, node] : job.nodes) {
        if (tokens_.IsDue(now, job, node)) changes->Single(id, rank);
      }
      Lifecycle(ScopeOf(job, *changes)).TellFormingIfDue();
    }
    return leases_.NextTick(now, jobs_);
  });
}

v1::GetStatusResponse Membership::GetStatus(absl::Time now,
                                            const v1::GetStatusRequest& request) const {
  v1::GetStatusResponse all = StatusView(process_, fleet_, jobs_, history_).Status(now);
  return request.job().empty() ? all : StatusView::OfJob(all, request.job());
}

MembershipSummary Membership::Summary() const {
  return StatusView(process_, fleet_, jobs_, history_).Summary();
}

}  // namespace addend
