// The updates that members get.
#include "services/scheduler/updates.h"

#include <algorithm>
#include <set>
#include <string>

#include "absl/strings/str_format.h"
#include "lib/base/failure.h"
#include "services/scheduler/job_servers.h"
#include "services/scheduler/node_list.h"
#include "services/scheduler/relays.h"

namespace addend {
namespace {

using Stages = v1::AgreementRecord;

uint64_t OwnerVersionOf(const v1::TensorPlan& plan, uint32_t index) {
  return plan.versions().empty() ? 0 : plan.versions(static_cast<int>(index));
}

// A node that has no participant of a tensor hears nothing of it.
bool Concerns(const Job& job, const v1::TensorPlan& plan, NodeId node) {
  if (plan.tensor().participants().empty()) return true;
  const auto participants = job.ParticipantsOf(plan.tensor());
  return participants.ok() && job.IsAmong(node, *participants);
}

std::string WaitsForIdle(const Job& job) {
  NodeList active;
  for (const auto& [rank, node] : job.nodes) {
    if (!node.idle) active.Add(rank.value());
  }
  if (active.count() == 0) return "";
  return absl::StrFormat("waiting for the trainers of generation %d on %s to end",
                         job.current.number.value(), active.Text());
}

void FillServer(const Server& server, v1::ServerInfo* info) {
  info->set_server_id(server.id.value());
  info->set_incarnation(server.info.incarnation());
  *info->mutable_endpoints() = server.info.endpoints();
  info->set_shards(server.info.shards());
  info->set_colocated(server.colocated());
  info->set_colocated_node(server.info.colocated_node());
  info->set_hostname(server.info.hostname());
  *info->mutable_protocols() = server.info.protocols();
}

void AddServer(const Fleet& fleet, ServerId id, v1::NodeUpdate* update) {
  if (const Server* const server = fleet.Find(id)) FillServer(*server, update->add_servers());
}

// Returns the relays.
std::set<ServerId> AddRelayedSpans(const DeclaredTensor& tensor, ServerId server,
                                   const Owned& owned, uint32_t nodes, v1::TensorReservation* to) {
  std::set<ServerId> peers;
  for (const uint32_t index : owned.partitions) {
    // Relays do not follow a move: an owner to be has none.
    if (tensor.plan.servers(static_cast<int>(index)) != server.value()) continue;
    for (const PlannedRelay& relay : RelaysOf(tensor.plan, index, nodes)) {
      if (relay.to.server != server) continue;  // it sends to the next relay
      v1::RelayedSpan* const span = to->add_relayed();
      span->set_partition(index);
      span->set_first(relay.sum.first);
      span->set_count(relay.sum.count);
      span->set_server(relay.relay.server.value());
      peers.insert(relay.relay.server);
    }
  }
  return peers;
}

// Returns the servers before and behind this relay.
std::set<ServerId> AddRelays(const DeclaredTensor& tensor, const Owned& owned, uint32_t nodes,
                             v1::RelayReservation* reservation) {
  std::set<ServerId> peers;
  v1::TensorReservation* const of = reservation->mutable_tensor();
  of->set_tensor_id(tensor.plan.tensor_id());
  *of->mutable_tensor() = tensor.descriptor;
  of->set_partition_elements(tensor.plan.partition_elements());
  for (const auto& [index, unit] : owned.relayed) {
    const auto relay = RelayOf(tensor.plan, index, unit, nodes);
    if (!relay.has_value()) continue;
    of->add_partitions(index);
    of->add_shards(relay->relay.shard);
    v1::RelayOrder* const order = reservation->add_orders();
    order->set_first(relay->sum.first);
    order->set_count(relay->sum.count);
    order->set_first_node(relay->nodes.first);
    order->set_before(relay->before.value());
    order->set_to(relay->to.server.value());
    order->set_to_shard(relay->to.shard);
    peers.insert(relay->to.server);
    if (relay->before != ServerId()) peers.insert(relay->before);
  }
  return peers;
}

void AddPeers(std::set<ServerId> peers, v1::JobReservation* reservation) {
  for (const v1::ServerInfo& known : reservation->peers()) {
    peers.erase(ServerId(known.server_id()));
  }
  for (const ServerId peer : peers) reservation->add_peers()->set_server_id(peer.value());
}

}  // namespace

std::map<uint32_t, v1::PartitionMove> MovesOf(const DeclaredTensor& tensor) {
  std::map<uint32_t, v1::PartitionMove> moves;
  for (const v1::PartitionMove& move : tensor.plan.moves()) moves[move.partition()] = move;
  return moves;
}

bool MovesAreHeldBack(const Job& job) {
  const Agreements& tensors = job.current.tensors;
  return std::any_of(tensors.begin(), tensors.end(), [&](const auto& entry) {
    if (entry.second.plan.moves().empty()) return false;
    return !entry.second.recovering.empty() || job.current.told.answered.contains(entry.first);
  });
}

bool IsDrained(const Server& server, const Jobs& jobs) {
  if (!server.draining) return false;
  for (const auto& [id, job] : jobs) {
    if (job.current.state != v1::READY) continue;
    for (const auto& [agreement, tensor] : job.current.tensors) {
      if (tensor.owned.contains(server.id)) return false;
    }
  }
  return true;
}

void FillPeers(const Fleet& fleet, v1::JobReservation* reservation) {
  for (v1::ServerInfo& peer : *reservation->mutable_peers()) {
    if (const Server* const server = fleet.Find(ServerId(peer.server_id()))) {
      FillServer(*server, &peer);
    }
  }
}

void AddReservation(const DeclaredTensor& tensor, ServerId server, const Owned& owned,
                    uint32_t nodes, v1::JobReservation* job) {
  if (!owned.relayed.empty()) {
    AddPeers(AddRelays(tensor, owned, nodes, job->add_relay()), job);
  }
  if (owned.partitions.empty()) return;
  v1::TensorReservation* reservation = job->add_reserve();
  reservation->set_tensor_id(tensor.plan.tensor_id());
  *reservation->mutable_tensor() = tensor.descriptor;
  reservation->set_partition_elements(tensor.plan.partition_elements());
  reservation->mutable_partitions()->Add(owned.partitions.begin(), owned.partitions.end());
  reservation->mutable_shards()->Add(owned.shards.begin(), owned.shards.end());
  AddPeers(AddRelayedSpans(tensor, server, owned, nodes, reservation), job);
  const std::map<uint32_t, v1::PartitionMove> moves = MovesOf(tensor);
  if (tensor.plan.versions().empty() && moves.empty()) return;
  for (const uint32_t index : owned.partitions) {
    const auto move = moves.find(index);
    const bool handed_over = move != moves.end() && move->second.server() == server.value();
    reservation->add_handed_over(handed_over);
    reservation->add_versions(handed_over ? move->second.version()
                                          : OwnerVersionOf(tensor.plan, index));
  }
}

void AddHandOvers(const Job& job, const DeclaredTensor& tensor, ServerId owner,
                  v1::JobReservation* reservation) {
  if (job.current.change.phase != Change::Phase::kHandingOver) return;
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

void FillJob(const Job& job, v1::JobReservation* reservation) {
  reservation->set_job_id(job.id.value());
  reservation->set_job_name(job.name);
  reservation->set_generation(job.current.number.value());
  reservation->set_plan_version(job.plan_version.value());
  reservation->set_key(job.key);
  reservation->set_num_nodes(job.settings.num_nodes());
  reservation->set_local_size(job.settings.local_size());
  reservation->set_failed(job.current.state == v1::FAILED);
  reservation->clear_lost_nodes();
  for (const auto& [rank, why] : job.current.gone) reservation->add_lost_nodes(rank.value());
}

v1::ServerUpdate FullServerUpdate(const Server& server, const Jobs& jobs,
                                  std::vector<std::pair<JobId, TensorId>>* awaited) {
  v1::ServerUpdate update;
  update.set_full(true);
  for (const auto& [job_id, job] : jobs) {
    if (!MayUse(job, server)) continue;
    v1::JobReservation* reservation = update.add_jobs();
    FillJob(job, reservation);
    for (const auto& [agreement, tensor] : job.current.tensors) {
      const TensorId id(tensor.plan.tensor_id());
      const auto owned = tensor.owned.find(server.id);
      if (owned == tensor.owned.end()) {
        // The server drops a tensor of which it owns nothing; the nodes wait for that.
        if (tensor.recovering.contains(server.id)) awaited->emplace_back(job_id, id);
        continue;
      }
      AddReservation(tensor, server.id, owned->second, job.settings.num_nodes(), reservation);
      AddHandOvers(job, tensor, server.id, reservation);
      awaited->emplace_back(job_id, id);
    }
  }
  return update;
}

v1::TensorPlan PlanForNodes(const Job& job, const DeclaredTensor& tensor) {
  v1::TensorPlan plan = tensor.plan;
  if (!job.current.change.NodesKnow()) plan.clear_moves();
  return plan;
}

void FillServers(Job* job, const Fleet& fleet, v1::NodeUpdate* update) {
  update->clear_servers();
  for (const ServerId id : job->current.plan_servers) AddServer(fleet, id, update);
  job->current.told.known_servers.insert(job->current.plan_servers.begin(),
                                         job->current.plan_servers.end());
}

void TellServers(Job* job, const Fleet& fleet, v1::NodeUpdate* update) {
  JobGeneration& current = job->current;
  std::set<ServerId> plan = current.plan_servers;
  std::erase_if(plan, [&fleet](ServerId id) { return fleet.Find(id) == nullptr; });
  if (!job->AllTakeServerChanges()) {
    FillServers(job, fleet, update);
  } else {
    update->set_servers_are_changes(true);
    for (const ServerId id : plan) {
      if (!current.told.servers.contains(id)) AddServer(fleet, id, update);
    }
    for (const ServerId id : current.told.known_servers) {
      if (!plan.contains(id)) update->add_servers_gone(id.value());
    }
  }
  current.told.servers = plan;
  current.told.known_servers = std::move(plan);
}

void FillState(const Job& job, v1::NodeUpdate* update) {
  const JobGeneration& current = job.current;
  update->set_generation(current.number.value());
  update->set_state(current.state);
  update->set_reason(current.reason);
  update->set_exit_code(current.failure.exit_status);
  update->set_failed_kind(current.failure.name);
  update->set_decided(current.all_decided);
  update->set_plan_version(job.plan_version.value());
  const uint64_t change = current.change.number;
  update->set_change(change != 0 && !MovesAreHeldBack(job) ? change : 0);
  update->set_optimal_s_per_byte(job.optimal_s_per_byte);
  update->clear_lost_nodes();
  for (const auto& [rank, why] : current.gone) update->add_lost_nodes(rank.value());
  const auto waiting = std::count_if(job.nodes.begin(), job.nodes.end(), [&job](const auto& node) {
    return node.second.idle && node.second.trainers == job.settings.local_size();
  });
  update->set_waiting_nodes(static_cast<uint32_t>(waiting));
  current.departures.Fill(current.tensors, update);
  current.standstill.Fill(update);
}

v1::NodeUpdate FullNodeUpdate(Job* job, const Fleet& fleet) {
  v1::NodeUpdate update;
  update.set_full(true);
  FillState(*job, &update);
  FillServers(job, fleet, &update);
  for (const auto& [agreement, tensor] : job->current.tensors) {
    // Where new owners have not answered yet, the nodes are told when they have.
    if (tensor.stage == Stages::PLANNED && tensor.recovering.empty()) {
      *update.add_tensors() = PlanForNodes(*job, tensor);
    }
    if (tensor.stage == Stages::REFUSED) *update.add_errors() = tensor.error;
  }
  return update;
}

RelayViews::RelayViews(uint32_t nodes, SharedUpdate update)
    : nodes_(nodes), update_(std::move(update)), without_relays_(update_) {
  const auto has_relays = [](const v1::TensorPlan& plan) { return plan.has_relays(); };
  if (std::none_of(update_->tensors().begin(), update_->tensors().end(), has_relays)) return;
  auto direct = std::make_shared<v1::NodeUpdate>(*update_);
  for (v1::TensorPlan& plan : *direct->mutable_tensors()) plan.clear_relays();
  without_relays_ = std::move(direct);
}

const SharedUpdate& RelayViews::For(NodeId node) {
  if (without_relays_ == update_) return update_;
  std::vector<uint32_t> units;
  for (const v1::TensorPlan& plan : update_->tensors()) {
    units.push_back(plan.has_relays() ? UnitOf(node, plan.relays()) : 0);
  }
  SharedUpdate& view = views_[units];
  if (view != nullptr) return view;
  auto own = std::make_shared<v1::NodeUpdate>(*without_relays_);
  for (int i = 0; i < update_->tensors_size(); ++i) {
    const v1::TensorPlan& plan = update_->tensors(i);
    if (!plan.has_relays()) continue;
    ShowRelays(plan, units[static_cast<size_t>(i)], nodes_, own->mutable_tensors(i));
  }
  return view = std::move(own);
}

SharedUpdate AsSeenBy(const Job& job, const Node& node, const SharedUpdate& update) {
  const bool all_concern =
      std::all_of(update->tensors().begin(), update->tensors().end(),
                  [&](const v1::TensorPlan& plan) { return Concerns(job, plan, node.rank); });
  const bool takes_part = job.current.state == v1::FORMING || job.TakesPart(node);
  if (all_concern && takes_part) return update;
  auto own = std::make_shared<v1::NodeUpdate>(*update);
  if (!all_concern) {
    own->clear_tensors();
    for (const v1::TensorPlan& plan : update->tensors()) {
      if (Concerns(job, plan, node.rank)) *own->add_tensors() = plan;
    }
  }
  if (takes_part) return own;
  own->clear_errors();
  const auto gone = job.current.gone.find(node.rank);
  if (gone != job.current.gone.end()) {
    own->clear_tensors();
    own->clear_servers();
    own->clear_servers_gone();
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
    const ToldFailure lost = TellFailure(FailureKind::kPeerLost);
    own->set_exit_code(lost.exit_status);
    own->set_failed_kind(lost.name);
  }
  return own;
}

}  // namespace addend
