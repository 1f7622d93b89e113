// Links to servers: made, lost, and made again. The node of spec/recovery.pml, with
// plan_follower.h.
#include "services/worker_agent/servers.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "lib/base/failure.h"
#include "lib/base/log.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/member/protocols.h"
#include "lib/rpc/local_address.h"
#include "lib/summation/engine.h"
#include "lib/transport/shm/factory.h"
#include "services/worker_agent/route.h"

namespace addend {
namespace {

// A running server answers at once; the lease judges a server that is cut off.
constexpr absl::Duration kReconnectTimeout = absl::Seconds(2);
constexpr absl::Duration kBetweenAttempts = absl::Milliseconds(100);
// Where TCP is the alternative.
constexpr absl::Duration kRdmaTimeout = absl::Seconds(5);
// After this many attempts that end in the handshake the server counts as unreachable. A frame that
// was forged on the way ends an attempt.
constexpr int kUnprovedAttempts = 3;
constexpr absl::Duration kUnusedFor = absl::Minutes(1);

// The connection broke, or was closed because its end stops.
bool IsTransient(const absl::Status& why) {
  return absl::IsUnavailable(why) || absl::IsCancelled(why) || absl::IsAborted(why) ||
         absl::IsDeadlineExceeded(why) || absl::IsDataLoss(why);
}

std::string NameFor(uint32_t server, const v1::ServerInfo& info) {
  return info.colocated() ? absl::StrFormat("the summation server of node %d (%s)",
                                            info.colocated_node(), info.hostname())
                          : absl::StrFormat("summation server %d (%s)", server, info.hostname());
}

}  // namespace

void Servers::Learn(const google::protobuf::RepeatedPtrField<v1::ServerInfo>& servers_in_plan) {
  std::map<uint32_t, v1::ServerInfo> now;
  for (const v1::ServerInfo& server : servers_in_plan) now[server.server_id()] = server;
  Replace(std::move(now));
}

void Servers::LearnChanges(const google::protobuf::RepeatedPtrField<v1::ServerInfo>& changed,
                           const google::protobuf::RepeatedField<uint32_t>& gone) {
  std::map<uint32_t, v1::ServerInfo> now = servers();
  for (const uint32_t server : gone) now.erase(server);
  for (const v1::ServerInfo& server : changed) now[server.server_id()] = server;
  Replace(std::move(now));
}

void Servers::Replace(std::map<uint32_t, v1::ServerInfo> now_in_plan) {
  const std::map<uint32_t, v1::ServerInfo> former =
      std::exchange(context_.directory->servers, std::move(now_in_plan));
  // A server that returns to the plan later may be lost a second time.
  std::erase_if(reported_lost_,
                [this](const auto& report) { return !servers().contains(report.first); });
  for (auto& [key, link] : links_) {
    if (is_colocated(ServerId(key.first))) continue;
    const auto now = servers().find(key.first);
    const auto before = former.find(key.first);
    // With another incarnation the number belongs to another process: the scheduler has lost its
    // record of it.
    const bool same =
        now != servers().end() &&
        (before == former.end() || before->second.incarnation() == now->second.incarnation());
    if (!same) link->Close(absl::CancelledError("the server is not in the plan any more"));
  }
}

absl::StatusOr<ServerLink*> Servers::LinkTo(uint32_t server, uint32_t shard) {
  const LinkKey key(server, shard);
  if (const auto it = links_.find(key); it != links_.end() && !it->second->given_up()) {
    Reconnect(key);  // the link may have been lost while it was not needed
    return it->second.get();
  } else if (it != links_.end()) {
    // The server has returned to the plan. Tensors whose plans are still to come name the former
    // link.
    replaced_.push_back(std::move(it->second));
    links_.erase(it);
  }
  if (is_colocated(ServerId(server))) {
    ServerLink* const link = Make(key, "the colocated summation server");
    link->Connect(context_.transports.inproc, {.host = Engine::InprocName(shard)}, "",
                  context_.options->connect_timeout);
    return link;
  }
  const auto it = servers().find(server);
  if (it == servers().end() || it->second.endpoints_size() == 0) {
    return absl::InternalError(
        absl::StrFormat("the plan names summation server %d, which is unknown", server));
  }
  const std::string where = NameFor(server, it->second);
  ADDEND_RETURN_IF_ERROR(CheckReachable(where, it->second.endpoints(0)));
  ServerLink* const link = Make(key, where);
  const absl::Status status = Connect(link, it->second, context_.options->connect_timeout);
  if (status.ok()) return link;
  links_.erase(key);
  return status;
}

ServerLink* Servers::Make(const LinkKey& key, const std::string& where) {
  auto link = std::make_unique<ServerLink>(context_.identity, events_, context_.convoy,
                                           ServerId(key.first), where, key.second,
                                           [clock = context_.clock] { return clock->Now(); });
  return (links_[key] = std::move(link)).get();
}

// A connection to a loopback address of another machine would end at a process of this machine.
absl::Status Servers::CheckReachable(const std::string& where,
                                     const v1::DataEndpoint& endpoint) const {
  const NodeOptions& options = *context_.options;
  if (!IsLoopback(endpoint.host()) || IsLoopback(options.advertise)) return absl::OkStatus();
  return WithKind(
      absl::FailedPreconditionError(absl::StrFormat(
          "%s advertises %s, which other machines cannot reach: start it with --advertise=HOST, an "
          "address that %s (node %d) reaches",
          where, endpoint.host(), options.hostname, context_.identity->node.value())),
      FailureKind::kInvalid);
}

// The newest version that both speak: the HELLO carries it. The scheduler plans over no server
// without a version in common.
absl::Status Servers::SettleVersion(ServerLink* link, const v1::ServerInfo& server) {
  const VersionRange theirs = FramesOf(server.protocols());
  const auto common = Common(protocol::kFrame, theirs);
  if (common.has_value()) {
    link->SetVersion(static_cast<uint16_t>(common->newest));
    return absl::OkStatus();
  }
  return MakeFailure(
      FailureKind::kVersion,
      absl::StrFormat("%s speaks %s of the frame protocol, but this agent speaks %s: install "
                      "releases of Addend "
                      "that have a version in common (docs/operations.md)",
                      link->where(), Describe(theirs), Describe(protocol::kFrame)));
}

absl::Status Servers::Connect(ServerLink* link, const v1::ServerInfo& server,
                              absl::Duration timeout) {
  const NodeOptions& options = *context_.options;
  RouteChoice choice{.mode = options.transport, .ports = {}, .why_no_ports = options.why_no_rdma};
  for (const auto& device : options.rdma_devices) {
    // Without TCP a port that is down is tried until it is up again.
    if (device->active() || choice.mode == TransportMode::kRdma) {
      choice.ports.push_back(device->address());
    }
  }
  if (choice.ports.empty() && !options.rdma_devices.empty()) {
    choice.why_no_ports = "no RDMA port of this machine is active";
  }
  const auto failure = rdma_failures_.find(server.server_id());
  ADDEND_ASSIGN_OR_RETURN(
      const Route route,
      ChooseRoute(choice, server, failure == rdma_failures_.end() ? "" : failure->second));
  ADDEND_RETURN_IF_ERROR(SettleVersion(link, server));
  std::string& former = routes_[server.server_id()];
  if (former != route.reason && !options.rdma_devices.empty()) {
    spdlog::info("{} is reached over {} ({})", link->where(), route.rdma ? "RDMA" : "TCP",
                 route.reason);
  }
  former = route.reason;
  Shortcut here;
  if (!without_shared_memory_.contains(server.server_id())) {
    here = {
        .transport = context_.transports.shm,
        .address = {.host = SharedMemoryName(Incarnation(server.incarnation()), link->shard())}};
  }
  if (!route.rdma) {
    link->Connect(context_.transports.tcp, route.address, route.reason, timeout, here);
  } else {
    const bool or_tcp = options.transport == TransportMode::kAuto;
    link->Connect(context_.transports.rdma, route.address, route.reason,
                  or_tcp ? std::min(timeout, kRdmaTimeout) : timeout, here);
  }
  return absl::OkStatus();
}

void Servers::Reconnect(const LinkKey& key) {
  const auto link = links_.find(key);
  const auto server = servers().find(key.first);
  if (link == links_.end() || server == servers().end() ||
      link->second->state() != ServerLink::State::kLost) {
    return;
  }
  const absl::Duration timeout =
      link->second->times_open() > 0 ? kReconnectTimeout : context_.options->connect_timeout;
  const absl::Status status = Connect(link->second.get(), server->second, timeout);
  if (!status.ok()) state_->Fail(status);
}

void Servers::ReconnectLater(const ServerLink& link, bool at_once) {
  auto attempt = [this, key = LinkKey(link.server().value(), link.shard())] {
    if (!state_->failed()) Reconnect(key);
  };
  if (at_once) {
    context_.loop->Defer(std::move(attempt));
  } else {
    context_.loop->RunAfter(kBetweenAttempts, std::move(attempt));
  }
}

// RDMA has failed, not the server: for the rest of the generation TCP leads there. If the link was
// never open, the server may have failed as well: TCP will tell.
bool Servers::FallBackToTcp(ServerLink* link, const absl::Status& why) {
  const bool over_rdma = &link->transport() == context_.transports.rdma;
  if (!over_rdma || context_.options->transport != TransportMode::kAuto) return false;
  if (link->times_open() > 0 && !link->path_failed()) return false;
  const uint32_t server = link->server().value();
  if (!TakesTcp(servers().at(server))) return false;
  const bool first = rdma_failures_.emplace(server, Message(why)).second;
  ++context_.counters->rdma_fallbacks;
  if (first) {
    const std::string text = absl::StrFormat("%s; trying TCP", Message(why));
    spdlog::warn("{}", text);
    context_.incidents->Note({"rdma_fallback", text, context_.loop->TraceTime()});
  }
  ReconnectLater(*link, /*at_once=*/first);
  return true;
}

// Whatever is wrong with shared memory, the network may lead to the server: for the rest of the
// generation it is taken. A link that was open may only have lost its process.
bool Servers::FallBackFromSharedMemory(ServerLink* link, const absl::Status& why) {
  if (&link->transport() != context_.transports.shm || !link->met()) return false;
  if (link->open_attempts() == 0 && IsTransient(why) && !absl::IsDataLoss(why)) return false;
  if (!without_shared_memory_.insert(link->server().value()).second) return false;
  spdlog::warn("{}; trying the network", Message(why));
  ReconnectLater(*link, /*at_once=*/true);
  return true;
}

bool Servers::OnOpen(ServerLink* link, Incarnation incarnation) {
  const auto server = servers().find(link->server().value());
  if (server != servers().end() && server->second.incarnation() != incarnation.value()) {
    ReportLost(link,
               absl::UnavailableError(absl::StrFormat("%s has been started anew", link->where())));
    return false;
  }
  if (link->times_open() > 1) spdlog::info("connected again to {}", link->where());
  WithdrawReport(link->server());
  return true;
}

// An accusation that stands costs the node of a colocated server its lease.
void Servers::WithdrawReport(ServerId server) {
  if (!reported_lost_.contains(server.value())) return;
  const bool lost = std::any_of(links_.begin(), links_.end(), [server](const auto& entry) {
    return entry.first.first == server.value() && !entry.second->open();
  });
  if (lost) return;
  reported_lost_.erase(server.value());
  context_.reports->Send(report::ServerReached(context_.identity->generation, server));
}

void Servers::OnLost(ServerLink* link, const absl::Status& why) {
  spdlog::debug("lost the link to {}: {}", link->where(), Message(why));
  const auto server = servers().find(link->server().value());
  if (server == servers().end()) return;  // declared dead already
  if (FallBackFromSharedMemory(link, why) || FallBackToTcp(link, why)) return;
  const FailureKind kind = KindOf(why);
  if (kind == FailureKind::kMismatch || kind == FailureKind::kVersion) {
    return state_->Fail(WithKind(why, kind));
  }
  const Use use = UseOf(link);
  if (use == Use::kNone && link->times_open() > 0 && !server->second.colocated())
    return;  // it has ended
  // Or the server has not heard of this job or generation, or has gone on to the next generation.
  const bool unwelcome = absl::IsUnauthenticated(why) || absl::IsPermissionDenied(why);
  if (!IsTransient(why) && !unwelcome && !absl::IsFailedPrecondition(why)) {
    return state_->Fail(why);  // another attempt would be refused too
  }
  if (unwelcome && use == Use::kOwner && link->open_attempts() < kUnprovedAttempts) {
    spdlog::warn("{}; connecting again", Message(why));
    return ReconnectLater(*link, /*at_once=*/false);
  }
  // The process at this address is not the server of the plan, or the path is at fault. The server
  // may stay in the plan, a colocated one with its node: only another attempt can tell.
  if (!IsTransient(why) && use == Use::kOwner) ReportLost(link, why);
  // Refused. A connection that breaks in its handshake may be a matter of the path.
  const bool refused = !link->met() || link->open_attempts() >= kUnprovedAttempts;
  if (link->open_attempts() > 0 && absl::IsUnavailable(why) && refused) ReportLost(link, why);
  // Other nodes may reach the server, but the job must not wait for this node for ever.
  if (link->times_open() == 0 && absl::IsDeadlineExceeded(why)) ReportLost(link, why);
  ReconnectLater(*link, /*at_once=*/link->open_attempts() == 0 && link->times_open() <= 1);
}

Servers::Use Servers::UseOf(const ServerLink* link) const {
  Use use = Use::kNone;
  for (const auto& [id, tensor] : tensors_->by_id()) {
    for (const PartitionOwner& owner : tensor->owners) {
      if (owner.link == link) return Use::kOwner;
      if (owner.next == link) use = Use::kNextOwner;
    }
  }
  return use;
}

// Harmless if it is not true: the server's partitions are summed elsewhere, with the same bits.
void Servers::ReportLost(ServerLink* link, const absl::Status& why) {
  if (!reported_lost_.emplace(link->server().value(), why).second) return;
  spdlog::warn("{}; the scheduler decides what becomes of it", Message(why));
  context_.reports->Send(report::ServerLost(context_.identity->generation, link->server(), why));
}

void Servers::ReportAgain() const {
  for (const auto& [server, why] : reported_lost_) {
    context_.reports->Send(
        report::ServerLost(context_.identity->generation, ServerId(server), why));
  }
}

void Servers::LimitInFlight(uint32_t nodes) {
  if (!std::exchange(loads_changed_, false)) return;
  const size_t limit = context_.convoy->limits().contributions_in_flight;
  if (limit == SendLimits::kUnlimited) return;
  std::map<ServerLink*, double> carried;
  for (const auto& [id, tensor] : tensors_->by_id()) {
    for (uint32_t partition = 0; partition < tensor->partitions(); ++partition) {
      carried[tensor->owners[partition].link] += static_cast<double>(tensor->BytesOf(partition));
    }
  }
  double sent = 0, whole = 0;
  for (const auto& [link, bytes] : carried) whole += bytes;
  for (const auto& [link, bytes] : carried) {
    // A relay sends results to fewer nodes. A server whose share is right sends no more than the
    // nodes do.
    sent += is_colocated(link->server()) ? std::min((nodes - 1) * bytes, whole) : bytes;
  }
  if (sent <= 0) return;
  for (const auto& [link, bytes] : carried) link->LimitInFlight(PartInFlight(limit, bytes / sent));
}

void Servers::CloseUnused() {
  if (context_.clock->Now() - owners_changed_at_ < kUnusedFor) return;
  owners_changed_at_ = absl::InfiniteFuture();
  for (auto next = links_.begin(); next != links_.end();) {
    const auto it = next++;
    ServerLink* const link = it->second.get();
    // A lost link is tried further: when it is open again, the report of its server is withdrawn.
    if (!link->open() || is_colocated(link->server()) || UseOf(link) != Use::kNone) continue;
    link->Close(absl::CancelledError("the server sums nothing for this node"));
    replaced_.push_back(std::move(it->second));
    links_.erase(it);
  }
}

void Servers::CloseAll(const absl::Status& why) {
  for (auto& [key, link] : links_) link->Close(why);
}

void Servers::Retire(const absl::Status& why) {
  CloseAll(why);
  for (auto& [key, link] : links_) replaced_.push_back(std::move(link));
  links_.clear();
  for (auto& link : replaced_) context_.directory->retired.push_back(std::move(link));
  replaced_.clear();
  context_.directory->DropClosed();
}

}  // namespace addend
