// The agent when servers are lost: links that break, and partitions with new owners. The node of
// spec/recovery.pml; every handler here is one of its steps.
#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/exit_codes.h"
#include "lib/base/log.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "services/worker_agent/agent.h"
#include "services/worker_agent/route.h"

namespace addend {
namespace {

// A server that is there answers at once; one that is cut off is the lease's to judge.
constexpr absl::Duration kReconnectTimeout = absl::Seconds(2);
constexpr absl::Duration kBetweenAttempts = absl::Milliseconds(100);
// Where TCP is the other way.
constexpr absl::Duration kRdmaTimeout = absl::Seconds(5);

// The connection broke, or was closed because its end stops.
bool IsTransient(const absl::Status& why) {
  return absl::IsUnavailable(why) || absl::IsCancelled(why) || absl::IsAborted(why) ||
         absl::IsDeadlineExceeded(why) || absl::IsDataLoss(why);
}

}  // namespace

// A reset is not a death: the server may be there still. Disagreement is final. The loss of another
// node's colocated server is the scheduler's to judge: it lives as long as its node.
void Agent::OnLinkLost(ServerLink* link, const absl::Status& why) {
  // A job that nobody uses is being released, or starts over: its links close then.
  if (!failure_.ok() || !AnyTrainer()) return;
  spdlog::debug("lost the link to {}: {}", link->where(), Message(why));
  const auto server = servers_.find(link->server().value());
  if (server == servers_.end()) return;  // declared dead already
  if (link->path_failed() && push_->direct_bytes() > 0) StopReadingDevices(Message(why));
  if (TakeAnotherWay(link, why)) return;
  const ExitCode code = ExitCodeOf(why);
  const bool disagreement = code == kExitMismatch || code == kExitVersion;
  if (disagreement) {
    return FailJob(why, code == kExitMismatch ? "mismatch" : "version", /*report=*/true);
  }
  const Use use = UseOf(link);
  if (use == Use::kNone && link->was_open() && !server->second.colocated()) return;  // it has ended
  // Or it has not heard of this job or generation, or has gone on to the next one.
  const bool unwelcome = absl::IsUnauthenticated(why) || absl::IsPermissionDenied(why);
  if (!IsTransient(why) && !unwelcome && !absl::IsFailedPrecondition(why)) {
    return FailJob(why, "internal", /*report=*/true);  // it would be refused again
  }
  if (!IsTransient(why) && use == Use::kOwner) {
    return ReportLost(link, why);  // whoever answers there is not the server of the plan
  }
  if (link->open_attempts() > 0 && absl::IsUnavailable(why)) ReportLost(link, why);  // refused
  // Others may reach it, but not this node: the job must not wait for that for ever.
  if (!link->was_open() && absl::IsDeadlineExceeded(why)) ReportLost(link, why);
  ReconnectLater(*link, /*at_once=*/link->open_attempts() == 0 && !link->reopened());
}

void Agent::ReconnectLater(const ServerLink& link, bool at_once) {
  const LinkKey key(link.server().value(), link.shard());
  const Generation generation = identity_.generation;
  auto attempt = [this, key, generation] {
    if (generation == identity_.generation && failure_.ok()) Reconnect(key);
  };
  if (at_once) {
    loop_->Defer(std::move(attempt));
  } else {
    loop_->RunAfter(kBetweenAttempts, std::move(attempt));
  }
}

// RDMA has failed, not the server: for the rest of the generation TCP leads there. Of a link that
// never was open nobody knows which of the two it is: TCP will tell.
bool Agent::TakeAnotherWay(ServerLink* link, const absl::Status& why) {
  const bool over_rdma = &link->transport() == rdma_.get();
  if (!over_rdma || options_.transport != TransportMode::kAuto) return false;
  if (link->was_open() && !link->path_failed()) return false;
  const uint32_t server = link->server().value();
  if (!TakesTcp(servers_.at(server))) return false;
  const bool first = rdma_failures_.emplace(server, Message(why)).second;
  ++rdma_fallbacks_;
  if (first) {
    spdlog::warn("{}; trying TCP", Message(why));
    NoteIncident("rdma_fallback", absl::StrFormat("%s; trying TCP", Message(why)));
  }
  ReconnectLater(*link, /*at_once=*/first);
  return true;
}

Agent::Use Agent::UseOf(const ServerLink* link) const {
  Use use = Use::kNone;
  for (const auto& [id, tensor] : by_id_) {
    for (const PartitionOwner& owner : tensor->owners) {
      if (owner.link == link) return Use::kOwner;
      if (owner.next == link) use = Use::kOwnerToBe;
    }
  }
  return use;
}

// Harmless if it is not true: the server's partitions are summed elsewhere, with the same bits.
void Agent::ReportLost(ServerLink* link, const absl::Status& why) {
  if (reports_ == nullptr || !lost_servers_.insert(link->server().value()).second) return;
  spdlog::warn("{}; the scheduler decides what becomes of it", Message(why));
  reports_->ReportServerLost(identity_.generation, link->server(), why);
}

void Agent::Reconnect(const LinkKey& key) {
  const auto link = links_.find(key);
  const auto server = servers_.find(key.first);
  if (link == links_.end() || server == servers_.end() || !link->second->closed() ||
      link->second->given_up()) {
    return;
  }
  const absl::Duration timeout =
      link->second->was_open() ? kReconnectTimeout : options_.connect_timeout;
  const absl::Status status = Connect(link->second.get(), server->second, timeout);
  if (!status.ok()) FailJob(status, "internal", /*report=*/true);
}

absl::Status Agent::Connect(ServerLink* link, const v1::ServerInfo& server,
                            absl::Duration timeout) {
  RouteChoice choice{.mode = options_.transport, .ports = {}, .why_no_ports = options_.why_no_rdma};
  for (const auto& device : options_.rdma_devices) {
    // Without TCP one that is down is tried until it is up again.
    if (device->active() || choice.mode == TransportMode::kRdma) {
      choice.ports.push_back(device->address());
    }
  }
  if (choice.ports.empty() && !options_.rdma_devices.empty()) {
    choice.why_no_ports = "no RDMA port of this machine is active";
  }
  const auto failure = rdma_failures_.find(server.server_id());
  ADDEND_ASSIGN_OR_RETURN(
      const Route route,
      ChooseRoute(choice, server, failure == rdma_failures_.end() ? "" : failure->second));
  std::string& former = routes_[server.server_id()];
  if (former != route.reason && !options_.rdma_devices.empty()) {
    spdlog::info("{} is reached over {} ({})", link->where(), route.rdma ? "RDMA" : "TCP",
                 route.reason);
  }
  former = route.reason;
  if (!route.rdma) {
    link->Connect(tcp_.get(), route.address, route.reason, timeout);
  } else {
    const bool or_tcp = options_.transport == TransportMode::kAuto;
    link->Connect(rdma_.get(), route.address, route.reason,
                  or_tcp ? std::min(timeout, kRdmaTimeout) : timeout);
  }
  return absl::OkStatus();
}

// On a link that was there before, both sides say where they stand.
void Agent::OnLinkOpen(ServerLink* link, Incarnation incarnation) {
  const auto server = servers_.find(link->server().value());
  if (server != servers_.end() && server->second.incarnation() != incarnation.value()) {
    return ReportLost(
        link, absl::UnavailableError(absl::StrFormat("%s has been started anew", link->where())));
  }
  const bool again = link->reopened();
  if (again) spdlog::info("connected again to {}", link->where());
  for (const auto& [id, tensor] : by_id_) {
    for (uint32_t partition = 0; partition < tensor->partitions(); ++partition) {
      const PartitionOwner& owner = tensor->owners[partition];
      // It may have handed over before it was connected.
      if (owner.link != link || (!again && owner.next == nullptr)) continue;
      push_->SendReport(*tensor, partition, FrameType::kAck);
      if (!again) continue;
      if (owner.reported) push_->SendReport(*tensor, partition, FrameType::kRecover);
      const Task* task = pull_->Find(PartitionId(id, partition));
      if (task != nullptr) push_->Send(*task);
    }
  }
  AckChange();
}

// Whoever is not in the plan any more has been declared dead, or has left. Its frames must not
// arrive after those of the new owner.
void Agent::CloseDeadLinks() {
  for (auto& [key, link] : links_) {
    if (servers_.contains(key.first) || ServerId(key.first) == colocated_server_) continue;
    link->Close(absl::CancelledError("the server is not in the plan any more"));
  }
}

// A tensor that is known has partitions with new owners: tells them what this node holds.
void Agent::FollowPlan(const std::shared_ptr<Tensor>& tensor, const v1::TensorPlan& plan) {
  if (plan.servers_size() != static_cast<int>(tensor->partitions())) return;
  uint32_t moved = 0;
  for (int i = 0; i < plan.versions_size(); ++i) {
    PartitionOwner& owner = tensor->owners[i];
    const PlanVersion version(plan.versions(i));
    if (version <= owner.version) continue;
    const auto link = LinkTo(plan.servers(i), plan.shards(i));
    if (!link.ok()) return FailJob(link.status(), "internal", /*report=*/true);
    Follow(tensor.get(), i, *link, version);
    owner.reported = true;
    push_->SendReport(*tensor, i, FrameType::kRecover);
    ++moved;
  }
  if (moved > 0) {
    spdlog::info("{} partition{} of '{}' {} new owners (plan version {})", moved,
                 moved == 1 ? "" : "s", tensor->shape.name, moved == 1 ? "has" : "have",
                 plan_version_.value());
  }
  TakeMoves(tensor, plan);
}

void Agent::OnRecovered(const ServerLink* link, const FrameHeader& header) {
  const std::shared_ptr<Tensor> tensor = FindOwned(link, header);
  if (tensor == nullptr) return;
  PartitionOwner& owner = tensor->owners[header.partition.index()];
  if (!owner.reported || header.plan_version != owner.version) return;
  owner.reported = false;
  // The newest round itself comes from a node that holds it.
  const Task* task = pull_->Find(header.partition);
  if (task != nullptr && task->round > header.round) push_->Send(*task);
}

// The newest result that this node reported, for a node that lacks it.
void Agent::SendResult(const ServerLink* link, const FrameHeader& asked) {
  const std::shared_ptr<Tensor> tensor = FindOwned(link, asked);
  if (tensor == nullptr || tensor->rounds.Held(asked.partition.index()) != asked.round) return;
  push_->SendResult(tensor, asked.partition.index(), asked.round);
}

}  // namespace addend
