// Membership: planned changes. Servers join a running job, or drain: partitions move to other
// owners between two rounds, and nothing pauses. The scheduler of spec/recovery.pml (ANNOUNCED,
// HANDING_OVER). A job is in one change at a time; the stored plan has its moves until all nodes
// follow, so a scheduler that is started anew repeats it from the start.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "lib/base/strings.h"
#include "services/scheduler/membership_scope.h"

namespace addend {
namespace {

using Stages = v1::AgreementRecord;
using Phase = Change::Phase;

std::string_view Explain(PlanReason reason) {
  switch (reason) {
    case PlanReason::kDeclare:
      return "tensors were declared";
    case PlanReason::kJoin:
      return "a server has joined";
    case PlanReason::kDrain:
      return "a server is being drained";
    case PlanReason::kLoss:
      return "a server was lost";
    case PlanReason::kPace:
      break;
  }
  return "a server has become slower or faster";
}

}  // namespace

absl::Status Membership::Drain(absl::Time now, const v1::DrainRequest& request,
                               Decision* decision) {
  Scope scope(this, now, decision);
  const auto found = servers_.find(ServerId(request.server_id()));
  if (found == servers_.end()) {
    return absl::NotFoundError(
        absl::StrFormat("there is no server %d: addendctl status lists them", request.server_id()));
  }
  Server& server = found->second;
  if (server.colocated()) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s cannot be drained: it lives as long as its agent", NameOf(server)));
  }
  if (server.draining) return absl::OkStatus();
  server.draining = true;
  event_.changed_servers.insert(server.id);
  for (auto& [id, job] : jobs_) job.rebalance = PlanReason::kDrain;
  Note(event_kind::kDrained, "", NameOf(server) + " is being drained");
  return absl::OkStatus();
}

// Whatever an event has brought, changes go as far as they can.
void Membership::AdvanceChanges() {
  if (event_.decision == nullptr) return;
  for (auto& [id, job] : jobs_) {
    AdvanceChange(job);
    PlanChange(job);
  }
  TellDrained();
}

void Membership::AdvanceChange(Job& job) {
  Change& change = job.change;
  if (job.state != v1::READY || change.version == PlanVersion()) return;
  if (change.phase == Phase::kReserving && change.awaited.empty() && !MovesAreHeldBack(job)) {
    Announce(job);
  }
  if (change.phase == Phase::kAnnounced && AllNodes(job, change.connected)) TellToHandOver(job);
  if (change.phase == Phase::kHandingOver && AllNodes(job, change.following)) FinishChange(job);
}

// One that takes no part pushes nothing any more.
bool Membership::AllNodes(const Job& job, const std::set<NodeId>& nodes) const {
  return std::all_of(job.nodes.begin(), job.nodes.end(), [&](const auto& node) {
    return !job.TakesPart(node.second) || nodes.contains(node.first);
  });
}

// The job's partitions that are published, and which tensors they are of.
std::vector<PlannedPartition> Membership::PartitionsOf(const Job& job,
                                                       std::vector<uint64_t>* agreements) const {
  std::vector<PlannedPartition> partitions;
  for (const auto& entry : job.tensors) {
    if (entry.second.stage != Stages::PLANNED) continue;
    ForEachPartition(entry.second.plan, [&](const PlannedPartition& partition) {
      partitions.push_back(partition);
      agreements->push_back(entry.first);
    });
  }
  return partitions;
}

void Membership::PlanChange(Job& job) {
  if (!job.rebalance || job.state != v1::READY || job.change.version != PlanVersion()) return;
  for (const auto& [agreement, tensor] : job.tensors) {
    if (!tensor.recovering.empty()) return;  // the nodes have yet to be told of that
  }
  const PlanReason reason = *std::exchange(job.rebalance, std::nullopt);
  std::vector<uint64_t> agreements;
  const std::vector<PlannedPartition> partitions = PartitionsOf(job, &agreements);
  const auto moves = PlanMoves(partitions, ViewOf(job));
  if (!moves.ok()) {
    Say(absl::StrFormat("job '%s': all stays where it is: %s", job.name, Message(moves.status())));
    return;
  }
  if (moves->empty()) return;
  NextPlanVersion(job, reason);
  job.change.version = job.plan_version;
  std::set<uint64_t> changed;
  for (const PlannedMove& move : *moves) {
    AddMove(job, job.tensors.at(agreements[move.partition]), partitions[move.partition], move.to);
    changed.insert(agreements[move.partition]);
  }
  for (const uint64_t agreement : changed) AskOwnersToBe(job, job.tensors.at(agreement));
  Note(event_kind::kPlanned, job.name,
       absl::StrFormat("job '%s': %d of %d partitions change their server, because %s (plan "
                       "version %d)",
                       job.name, moves->size(), partitions.size(), Explain(reason),
                       job.plan_version.value()));
}

// In the books: the present owner keeps its memory, the load is the next one's.
void Membership::AddMove(Job& job, Tensor& tensor, const PlannedPartition& partition,
                         const PartitionPlace& to) {
  v1::PartitionMove* move = tensor.plan.add_moves();
  move->set_partition(partition.index);
  move->set_server(to.server.value());
  move->set_shard(to.shard);
  move->set_version(job.change.version.value());
  DropLoad(job, partition);
  TakePartition(job, tensor, MovedTo(partition, to));
  job.plan_servers.insert(to.server);
  event_.changed_plans.insert({job.id, tensor.agreement});
}

void Membership::AskOwnersToBe(Job& job, Tensor& tensor) {
  std::map<ServerId, Owned> added;
  for (const v1::PartitionMove& move : tensor.plan.moves()) {
    Owned& owned = added[ServerId(move.server())];
    owned.partitions.push_back(move.partition());
    owned.shards.push_back(move.shard());
  }
  for (const auto& [id, owned] : added) {
    job.change.awaited.insert(id);
    AskToHold(job, tensor, id, owned);
  }
}

// Of a tensor whose new owners have not answered, nodes are told nothing: a node might say that it
// follows all moves when it does not know all of them.
bool Membership::MovesAreHeldBack(const Job& job) const {
  return std::any_of(job.tensors.begin(), job.tensors.end(), [](const auto& entry) {
    return !entry.second.plan.moves().empty() && !entry.second.recovering.empty();
  });
}

uint64_t Membership::AnnouncedChange(const Job& job) const {
  return job.change.number != 0 && !MovesAreHeldBack(job) ? job.change.number : 0;
}

void Membership::Announce(Job& job) {
  job.change.phase = Phase::kAnnounced;
  job.change.number = next_update_++;
  v1::NodeUpdate& update = Broadcast(job);
  for (const auto& [agreement, tensor] : job.tensors) {
    // The nodes may know of moves that have been given up since.
    const bool concerned = !tensor.plan.moves().empty() || job.change.restored;
    if (tensor.stage == Stages::PLANNED && concerned && tensor.recovering.empty()) {
      *update.add_tensors() = tensor.plan;
    }
  }
  FillServers(job, &update);
}

// What a node is to know of the plan: moves when their owners to be are ready.
v1::TensorPlan Membership::PlanForNodes(const Job& job, const Tensor& tensor) const {
  v1::TensorPlan plan = tensor.plan;
  if (!job.change.NodesKnow()) plan.clear_moves();
  return plan;
}

// What `owner` has to hand over of the tensor, if it is time.
void Membership::AddHandOvers(const Job& job, const Tensor& tensor, ServerId owner,
                              v1::JobReservation* reservation) const {
  if (job.change.phase != Phase::kHandingOver) return;
  v1::HandOver* order = nullptr;
  for (const v1::PartitionMove& move : tensor.plan.moves()) {
    if (tensor.plan.servers(static_cast<int>(move.partition())) != owner.value()) continue;
    if (order == nullptr) {
      order = reservation->add_hand_over();
      order->mutable_partitions()->set_tensor_id(tensor.plan.tensor_id());
      order->set_version(move.version());
    }
    order->mutable_partitions()->add_partitions(move.partition());
  }
}

void Membership::TellToHandOver(Job& job) {
  job.change.phase = Phase::kHandingOver;
  for (const auto& [agreement, tensor] : job.tensors) {
    std::set<ServerId> owners;
    for (const v1::PartitionMove& move : tensor.plan.moves()) {
      owners.insert(ServerId(tensor.plan.servers(static_cast<int>(move.partition()))));
    }
    for (const ServerId owner : owners) {
      AddHandOvers(job, tensor, owner, ReservationFor(owner, job));
    }
  }
}

// Every node follows: the plan is as it was to be, and the former owners are released.
void Membership::FinishChange(Job& job) {
  job.plan_servers.clear();
  for (auto& [agreement, tensor] : job.tensors) {
    std::map<ServerId, std::set<uint32_t>> released;
    for (const auto& [index, move] : MovesOf(tensor)) {
      released[ServerId(tensor.plan.servers(static_cast<int>(index)))].insert(index);
      SetOwner(&tensor.plan, index, PlaceOf(move), move.version());
    }
    tensor.plan.clear_moves();
    for (const auto& [from, partitions] : released) LetGo(job, tensor, from, partitions);
    if (!released.empty()) event_.changed_plans.insert({job.id, agreement});
    if (tensor.stage != Stages::PLANNED) continue;
    for (const auto& [server, owned] : tensor.owned) job.plan_servers.insert(server);
  }
  Note(event_kind::kPlanned, job.name,
       absl::StrFormat("job '%s': plan version %d is in force", job.name,
                       job.change.version.value()));
  job.change = Change();
  FillServers(job, &Broadcast(job));
}

// An owner to be has no room for its part of the tensor, which stays where it is.
void Membership::CancelMoves(Job& job, Tensor& tensor, ServerId to) {
  const std::map<uint32_t, v1::PartitionMove> moves = MovesOf(tensor);
  std::set<uint32_t> cancelled;
  tensor.plan.clear_moves();
  for (const auto& [index, move] : moves) {
    if (ServerId(move.server()) == to) {
      cancelled.insert(index);
    } else {
      *tensor.plan.add_moves() = move;
    }
  }
  ForEachPartition(tensor.plan, [&](const PlannedPartition& partition) {
    if (!cancelled.contains(partition.index)) return;
    DropLoad(job, MovedTo(partition, PlaceOf(moves.at(partition.index))));
    AddLoad(job, partition);
  });
  LetGo(job, tensor, to, cancelled);
  event_.changed_plans.insert({job.id, tensor.agreement});
}

// `from` may give up the memory of these partitions.
void Membership::LetGo(Job& job, Tensor& tensor, ServerId from,
                       const std::set<uint32_t>& partitions) {
  Owned kept;
  uint64_t freed = 0;
  const Owned held = std::move(tensor.owned[from]);
  const v1::TensorPlan& plan = tensor.plan;
  const DType dtype = DTypeOf(plan.tensor());
  for (size_t i = 0; i < held.partitions.size(); ++i) {
    const uint32_t index = held.partitions[i];
    const uint64_t bytes = AccumulatorBytes(
        dtype, ElementsOfPartition(ElementsOf(plan.tensor()), plan.partition_elements(), index));
    if (partitions.contains(index)) {
      freed += bytes;
      continue;
    }
    kept.partitions.push_back(index);
    kept.shards.push_back(held.shards[i]);
    kept.accumulator_bytes += bytes;
  }
  if (kept.partitions.empty()) {
    tensor.owned.erase(from);
    NewOwnerAnswered(job, tensor, from);  // whatever it was asked, it owns nothing any more
  } else {
    tensor.owned[from] = std::move(kept);
  }
  const auto server = servers_.find(from);
  if (server == servers_.end()) return;
  v1::PartitionSet* released = ReleasesFor(from, job)->add_release_partitions();
  released->set_tensor_id(plan.tensor_id());
  released->mutable_partitions()->Add(partitions.begin(), partitions.end());
  if (server->second.free_bytes == ServerLoad::kUnlimited) return;
  server->second.free_bytes =
      std::min(server->second.free_bytes + freed, server->second.info.memory_limit_bytes());
}

// No running job needs it any more.
bool Membership::Drained(const Server& server) const {
  if (!server.draining) return false;
  for (const auto& [id, job] : jobs_) {
    if (job.state != v1::READY) continue;
    for (const auto& [agreement, tensor] : job.tensors) {
      if (tensor.owned.contains(server.id)) return false;
    }
  }
  return true;
}

void Membership::TellDrained() {
  for (auto& [id, server] : servers_) {
    if (server.drained_told || !Drained(server)) continue;
    server.drained_told = true;
    event_.server_updates[id].set_drained(true);
    Note(event_kind::kDrained, "", NameOf(server) + " is drained");
  }
}

}  // namespace addend
