// The owners of a job's partitions.
#include "services/scheduler/partition_ledger.h"

#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "services/scheduler/relays.h"
#include "services/scheduler/updates.h"

namespace addend {

void PartitionLedger::Enter(Job* job, DeclaredTensor* tensor, Fleet* fleet) {
  tensor->owned.clear();
  job->current.partitions += static_cast<uint64_t>(tensor->plan.servers_size());
  const std::map<uint32_t, v1::PartitionMove> moves = MovesOf(*tensor);
  ForEachPartition(tensor->plan, job->settings.num_nodes(), [&](const PlannedPartition& partition) {
    Hold(tensor, partition, fleet);
    HoldRelays(job, tensor, partition.index, fleet);
    const auto move = moves.find(partition.index);
    if (move == moves.end()) return AddLoad(job, *tensor, partition);
    const PlannedPartition moved = MovedTo(partition, PlaceOf(move->second));
    Hold(tensor, moved, fleet);
    AddLoad(job, *tensor, moved);
  });
}

void PartitionLedger::Hold(DeclaredTensor* tensor, const PlannedPartition& partition,
                           Fleet* fleet) {
  Owned& owned = tensor->owned[partition.server];
  owned.partitions.push_back(partition.index);
  owned.shards.push_back(partition.shard);
  owned.accumulator_bytes += partition.accumulator_bytes;
  fleet->Reserve(partition.server, partition.accumulator_bytes);
}

void PartitionLedger::HoldRelays(Job* job, DeclaredTensor* tensor, uint32_t partition,
                                 Fleet* fleet) {
  std::map<ServerId, JobLoad>& loads = job->current.loads[tensor->participants];
  for (const PlannedRelay& relay : RelaysOf(tensor->plan, partition, job->settings.num_nodes())) {
    loads[relay.relay.server].relayed_bytes += PayloadBytesOf(tensor->plan, partition);
    Owned& owned = tensor->owned[relay.relay.server];
    const uint64_t bytes = MemoryBytesOf(tensor->plan, partition, relay.sum.count);
    owned.relayed.emplace_back(partition, relay.unit);
    owned.accumulator_bytes += bytes;
    fleet->Reserve(relay.relay.server, bytes);
  }
}

uint64_t PartitionLedger::OwnersBytes(const DeclaredTensor& tensor, const Owned& owned) const {
  uint64_t bytes = 0;
  for (const uint32_t index : owned.partitions) {
    bytes += MemoryBytesOf(tensor.plan, index, job_.settings.num_nodes());
  }
  return bytes;
}

void PartitionLedger::EndRelays(DeclaredTensor* tensor) {
  if (!tensor->plan.has_relays()) return;
  tensor->plan.clear_relays();
  scope_.changes.StorePlan(job_.id, tensor->agreement);
  for (auto entry = tensor->owned.begin(); entry != tensor->owned.end();) {
    auto& [id, owned] = *entry;
    const uint64_t bytes = OwnersBytes(*tensor, owned);
    if (!owned.relayed.empty()) {
      scope_.fleet.Release(id, owned.accumulator_bytes - bytes);
      DropRelayLoad(*tensor, id, owned);
    }
    owned.relayed.clear();
    owned.accumulator_bytes = bytes;
    entry = owned.partitions.empty() ? tensor->owned.erase(entry) : std::next(entry);
  }
}

void PartitionLedger::DropRelayLoad(const DeclaredTensor& tensor, ServerId server,
                                    const Owned& owned) {
  std::map<ServerId, JobLoad>& loads = job_.current.loads[tensor.participants];
  const auto load = loads.find(server);
  if (load == loads.end()) return;
  for (const auto& [index, unit] : owned.relayed) {
    load->second.relayed_bytes -= PayloadBytesOf(tensor.plan, index);
  }
}

void PartitionLedger::AddLoad(Job* job, const DeclaredTensor& tensor,
                              const PlannedPartition& partition) {
  JobLoad& load = job->current.loads[tensor.participants][partition.server];
  load.bytes += partition.payload_bytes;
  if (load.shards.size() <= partition.shard) load.shards.resize(partition.shard + 1, 0);
  load.shards[partition.shard] += partition.payload_bytes;
}

void PartitionLedger::DropLoad(const DeclaredTensor& tensor, const PlannedPartition& partition) {
  std::map<ServerId, JobLoad>& loads = job_.current.loads[tensor.participants];
  const auto load = loads.find(partition.server);
  if (load == loads.end()) return;  // the server is lost, and its load with it
  load->second.bytes -= partition.payload_bytes;
  load->second.shards[partition.shard] -= partition.payload_bytes;
}

void PartitionLedger::Remove(DeclaredTensor* tensor, const std::set<ServerId>& told) {
  job_.current.partitions -= static_cast<uint64_t>(tensor->plan.servers_size());
  const std::map<uint32_t, v1::PartitionMove> moves = MovesOf(*tensor);
  ForEachPartition(tensor->plan, job_.settings.num_nodes(), [&](const PlannedPartition& partition) {
    const auto move = moves.find(partition.index);
    DropLoad(*tensor, move == moves.end() ? partition : MovedTo(partition, PlaceOf(move->second)));
  });
  for (const auto& [id, owned] : tensor->owned) {
    DropRelayLoad(*tensor, id, owned);
    if (scope_.fleet.Find(id) == nullptr) continue;
    // A server that has refused the partitions to own, or those to relay, may hold the others.
    const bool holds_both = !owned.partitions.empty() && !owned.relayed.empty();
    if (told.contains(id) && !holds_both) continue;
    scope_.changes.ReleasesFor(id, job_.id)->add_release_tensors(tensor->plan.tensor_id());
    if (!told.contains(id)) scope_.fleet.Release(id, owned.accumulator_bytes);
  }
  job_.current.tensors.ClearId(*tensor);
  tensor->owned.clear();
  tensor->awaited.clear();
  tensor->plan.Clear();
  scope_.changes.DeletePlan(job_.id, tensor->agreement);
}

void PartitionLedger::NextPlanVersion(PlanReason reason) {
  job_.NextPlanVersion();
  scope_.changes.Store(job_.id);
  scope_.changes.CountPlan(reason);
}

void PartitionLedger::Ask(const DeclaredTensor& tensor, ServerId server, const Owned& owned) {
  AddReservation(tensor, server, owned, job_.settings.num_nodes(),
                 scope_.changes.ReservationFor(server, job_.id));
  scope_.changes.ExpectAnswer(server, job_.id, TensorId(tensor.plan.tensor_id()));
}

void PartitionLedger::Move(DeclaredTensor* tensor, const PlannedPartition& partition,
                           const PartitionPlace& to) {
  SetOwner(&tensor->plan, partition.index, to, job_.plan_version.value());
  DropLoad(*tensor, partition);
  const PlannedPartition moved = MovedTo(partition, to);
  Hold(tensor, moved, &scope_.fleet);
  AddLoad(&job_, *tensor, moved);
  job_.current.plan_servers.insert(to.server);
}

void PartitionLedger::PlanMove(DeclaredTensor* tensor, const PlannedPartition& partition,
                               const PartitionPlace& to) {
  v1::PartitionMove* move = tensor->plan.add_moves();
  move->set_partition(partition.index);
  move->set_server(to.server.value());
  move->set_shard(to.shard);
  move->set_version(job_.current.change.version.value());
  DropLoad(*tensor, partition);
  const PlannedPartition moved = MovedTo(partition, to);
  Hold(tensor, moved, &scope_.fleet);
  AddLoad(&job_, *tensor, moved);
  job_.current.plan_servers.insert(to.server);
  scope_.changes.StorePlan(job_.id, tensor->agreement);
}

void PartitionLedger::FinishMoves(DeclaredTensor* tensor) {
  std::map<ServerId, std::set<uint32_t>> released;
  for (const auto& [index, move] : MovesOf(*tensor)) {
    released[ServerId(tensor->plan.servers(static_cast<int>(index)))].insert(index);
    SetOwner(&tensor->plan, index, PlaceOf(move), move.version());
  }
  tensor->plan.clear_moves();
  for (const auto& [from, partitions] : released) LetGo(tensor, from, partitions);
  if (!released.empty()) scope_.changes.StorePlan(job_.id, tensor->agreement);
}

void PartitionLedger::CancelMoves(DeclaredTensor* tensor, ServerId to) {
  const std::map<uint32_t, v1::PartitionMove> moves = MovesOf(*tensor);
  std::set<uint32_t> cancelled;
  tensor->plan.clear_moves();
  for (const auto& [index, move] : moves) {
    if (ServerId(move.server()) == to) {
      cancelled.insert(index);
    } else {
      *tensor->plan.add_moves() = move;
    }
  }
  ForEachPartition(tensor->plan, job_.settings.num_nodes(), [&](const PlannedPartition& partition) {
    if (!cancelled.contains(partition.index)) return;
    DropLoad(*tensor, MovedTo(partition, PlaceOf(moves.at(partition.index))));
    AddLoad(&job_, *tensor, partition);
  });
  LetGo(tensor, to, cancelled);
  scope_.changes.StorePlan(job_.id, tensor->agreement);
}

void PartitionLedger::KeepAtSurvivors(DeclaredTensor* tensor, const std::set<uint32_t>& partitions,
                                      ServerId lost) {
  v1::TensorPlan& plan = tensor->plan;
  std::map<uint32_t, v1::PartitionMove> moves = MovesOf(*tensor);
  ForEachPartition(plan, job_.settings.num_nodes(), [&](const PlannedPartition& partition) {
    if (!partitions.contains(partition.index)) return;
    PartitionPlace survivor{partition.server, partition.shard};
    if (partition.server == lost) {
      survivor = PlaceOf(moves.at(partition.index));
    } else {
      AddLoad(&job_, *tensor, partition);
    }
    SetOwner(&plan, partition.index, survivor, job_.plan_version.value());
    moves.erase(partition.index);
  });
  plan.clear_moves();
  for (const auto& [index, move] : moves) *plan.add_moves() = move;
}

// `from` may give up the memory of these partitions.
void PartitionLedger::LetGo(DeclaredTensor* tensor, ServerId from,
                            const std::set<uint32_t>& partitions) {
  Owned kept;
  uint64_t freed = 0;
  Owned held = std::move(tensor->owned[from]);
  kept.accumulator_bytes = held.accumulator_bytes - OwnersBytes(*tensor, held);  // of relays
  const v1::TensorPlan& plan = tensor->plan;
  for (size_t i = 0; i < held.partitions.size(); ++i) {
    const uint32_t index = held.partitions[i];
    const uint64_t bytes = MemoryBytesOf(plan, index, job_.settings.num_nodes());
    if (partitions.contains(index)) {
      freed += bytes;
      continue;
    }
    kept.partitions.push_back(index);
    kept.shards.push_back(held.shards[i]);
    kept.accumulator_bytes += bytes;
  }
  kept.relayed = std::move(held.relayed);
  if (kept.partitions.empty() && kept.relayed.empty()) {
    tensor->owned.erase(from);
    OwnerReady(tensor, from);  // whatever it was asked, it owns nothing any more
  } else {
    tensor->owned[from] = std::move(kept);
  }
  if (scope_.fleet.Find(from) == nullptr) return;
  v1::PartitionSet* released = scope_.changes.ReleasesFor(from, job_.id)->add_release_partitions();
  released->set_tensor_id(plan.tensor_id());
  released->mutable_partitions()->Add(partitions.begin(), partitions.end());
  scope_.fleet.Release(from, freed);
}

void PartitionLedger::OwnerReady(DeclaredTensor* tensor, ServerId server) {
  if (tensor->recovering.erase(server) == 0 || !tensor->recovering.empty()) return;
  job_.current.told.answered.insert(tensor->agreement);
}

}  // namespace addend
