// Membership: what nodes declare, and who sums it.
//
// A tensor is COLLECTING until all nodes have declared it, RESERVING until the servers of its plan
// have answered, then PLANNED; or REFUSED, with an error for everybody.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "lib/base/exit_codes.h"
#include "lib/base/strings.h"
#include "lib/plan/assignment.h"
#include "services/scheduler/membership_scope.h"
#include "services/scheduler/records.h"

namespace addend {
namespace {

using Stages = v1::AgreementRecord;

bool Agree(const v1::TensorDescriptor& a, const v1::TensorDescriptor& b) {
  const auto tree = [](const v1::TensorDescriptor& d) -> std::string_view {
    return d.reduction_tree().empty() ? std::string_view("flat") : d.reduction_tree();
  };
  return a.dtype() == b.dtype() && a.op() == b.op() && tree(a) == tree(b) &&
         std::equal(a.shape().begin(), a.shape().end(), b.shape().begin(), b.shape().end());
}

v1::TensorError MakeError(const std::string& name, std::string kind, uint32_t exit_code,
                          std::string message) {
  v1::TensorError error;
  error.set_name(name);
  error.set_kind(std::move(kind));
  error.set_exit_code(exit_code);
  error.set_message(std::move(message));
  return error;
}

}  // namespace

Tensor* Membership::FindTensor(Job& job, TensorId id) {
  const auto found = job.by_tensor_id.find(id.value());
  return found == job.by_tensor_id.end() ? nullptr : &job.tensors.at(found->second);
}

void Membership::DeclareOne(Job& job, const Node& node, const v1::TensorDescriptor& descriptor,
                            const PartitionSize& partition_size, std::vector<uint64_t>* ready) {
  const auto refuse = [&](std::string kind, uint32_t exit_code, const absl::Status& why) {
    *Single(job, node.rank).add_errors() =
        MakeError(descriptor.name(), std::move(kind), exit_code, Message(why));
  };
  const absl::Status valid = CheckDescriptor(descriptor, partition_size);
  if (!valid.ok()) return refuse("mismatch", kExitMismatch, valid);
  std::deque<uint64_t>& agreements = job.by_name[descriptor.name()];
  // The node's place among the agreements on this name: behind the last one it has taken part in.
  size_t place = agreements.size();
  while (place > 0 && !job.tensors.at(agreements[place - 1]).declared.Contains(node.rank)) --place;
  if (place > 0) {
    const Tensor& last = job.tensors.at(agreements[place - 1]);
    // Said again, because the first answer was lost, or by a node that has not undeclared it.
    if (!last.undeclared.Contains(node.rank)) return Repeat(job, node.rank, last, descriptor);
  }
  if (place == agreements.size()) {
    const absl::Status room = CheckRoomForTensor(job, descriptor.name());
    if (!room.ok()) {
      if (agreements.empty()) job.by_name.erase(descriptor.name());
      return refuse("resources", kExitBadConfiguration, room);
    }
    Tensor tensor;
    tensor.agreement = job.next_agreement++;
    tensor.descriptor = descriptor;
    tensor.first_node = node.rank;
    event_.changed_jobs.insert(job.id);
    agreements.push_back(tensor.agreement);
    job.tensors.emplace(tensor.agreement, std::move(tensor));
  }
  Tensor& tensor = job.tensors.at(agreements[place]);
  tensor.declared.Insert(node.rank);
  if (!tensor.differing && !Agree(tensor.descriptor, descriptor)) {
    tensor.differing = descriptor;
    tensor.differing_node = node.rank;
  }
  event_.changed_agreements.insert({job.id, tensor.agreement});
  if (tensor.stage == Stages::REFUSED) {
    *Single(job, node.rank).add_errors() = tensor.error;
  } else if (place == 0) {
    Evaluate(job, tensor, ready);
  }
}

// Answers a declaration that was taken before, for the one node that has repeated it.
void Membership::Repeat(Job& job, NodeId node, const Tensor& tensor,
                        const v1::TensorDescriptor& descriptor) {
  if (tensor.stage == Stages::REFUSED) {
    *Single(job, node).add_errors() = tensor.error;
  } else if (!Agree(tensor.descriptor, descriptor)) {
    *Single(job, node).add_errors() = MakeError(
        tensor.descriptor.name(), "mismatch", kExitMismatch,
        absl::StrFormat("tensor '%s' is declared as %s by node %d, but node %d has declared it as "
                        "%s before: undeclare it first",
                        tensor.descriptor.name(), Describe(descriptor), node.value(), node.value(),
                        Describe(tensor.descriptor)));
  } else if (tensor.stage == Stages::PLANNED && tensor.recovering.empty()) {
    v1::NodeUpdate& update = Single(job, node);
    FillServers(job, &update);
    *update.add_tensors() = PlanForNodes(job, tensor);
  }
}

// Takes the front agreement on a name a step further, if it can go.
void Membership::Evaluate(Job& job, Tensor& tensor, std::vector<uint64_t>* ready) {
  if (tensor.stage != Stages::COLLECTING) return;
  if (tensor.differing) {
    Refuse(job, tensor, "mismatch", kExitMismatch,
           absl::StrFormat("tensor '%s' is declared as %s by node %d but as %s by node %d: all "
                           "ranks must declare the same",
                           tensor.descriptor.name(), Describe(tensor.descriptor),
                           tensor.first_node.value(), Describe(*tensor.differing),
                           tensor.differing_node.value()));
  } else if (AllIn(job, tensor.declared)) {
    ready->push_back(tensor.agreement);
  }
}

// All nodes of the generation but those that are gone.
bool Membership::AllIn(const Job& job, const NodeSet& nodes) const {
  const auto gone = std::count_if(job.gone.begin(), job.gone.end(), [&nodes](const auto& node) {
    return !nodes.Contains(node.first);
  });
  return nodes.size() + static_cast<uint32_t>(gone) == job.settings.num_nodes();
}

void Membership::Refuse(Job& job, Tensor& tensor, std::string kind, uint32_t exit_code,
                        std::string message) {
  tensor.stage = Stages::REFUSED;
  tensor.error =
      MakeError(tensor.descriptor.name(), std::move(kind), exit_code, std::move(message));
  event_.changed_agreements.insert({job.id, tensor.agreement});
  *Broadcast(job).add_errors() = tensor.error;
  Note(event_kind::kRefused, job.name,
       absl::StrFormat("job '%s': %s", job.name, tensor.error.message()));
}

PartitionSize Membership::PartitionSizeOf(const Job& job) const {
  if (job.settings.partition_bytes() != 0) return job.settings.partition_bytes();
  double slowest = 0;
  for (const auto& [rank, node] : job.nodes) {
    const double bps = node.info.bandwidth_bps();
    if (bps > 0 && (slowest == 0 || bps < slowest)) slowest = bps;
  }
  return PartitionSize::Auto(slowest, EligibleServers(job).size());
}

PlannerJob Membership::ViewOf(const Job& job) const {
  PlannerJob view;
  // The nodes of the generation, numbered without gaps.
  std::map<NodeId, NodeId> place;
  for (uint32_t i = 0; i < job.settings.num_nodes(); ++i) {
    const NodeId rank(i);
    if (job.gone.contains(rank)) continue;
    place[rank] = NodeId(static_cast<uint32_t>(view.node_bps.size()));
    const auto node = job.nodes.find(rank);
    view.node_bps.push_back(node == job.nodes.end() ? 0 : node->second.info.bandwidth_bps());
  }
  for (const Server* server : EligibleServers(job)) {
    const NodeId rank(server->info.colocated_node());
    if (server->draining || (server->colocated() && !place.contains(rank))) continue;
    PlannerServer seen;
    seen.id = server->id;
    seen.name = NameOf(*server);
    if (server->colocated()) seen.node = place.at(rank);
    seen.bandwidth_bps = server->info.bandwidth_bps();
    seen.speed = server->speed;
    seen.jobs = server->colocated() ? 1 : static_cast<uint32_t>(jobs_.size());
    const ServerRoom room = RoomFor(job, *server);
    seen.load.free_bytes = room.bytes;
    seen.job_limited = room.of_job_limit;
    seen.load.shard_loads.assign(server->info.shards(), 0);
    if (const auto load = job.loads.find(server->id); load != job.loads.end()) {
      seen.load.load_bytes = load->second.bytes;
      seen.load.shard_loads = load->second.shards;
      seen.load.shard_loads.resize(server->info.shards(), 0);
    }
    view.servers.push_back(std::move(seen));
  }
  return view;
}

// All tensors that one event has completed are planned together, so that the largest go first.
void Membership::PlanAll(Job& job, const std::vector<uint64_t>& ready) {
  if (ready.empty() || job.state != v1::READY) return;
  PlannerJob view = ViewOf(job);
  std::vector<const v1::TensorDescriptor*> descriptors;
  for (const uint64_t agreement : ready) {
    descriptors.push_back(&job.tensors.at(agreement).descriptor);
  }
  auto plans = PlanTensors(descriptors, PartitionSizeOf(job), &view);
  if (!plans.ok()) {
    // One by one it comes out which of them is at fault.
    for (const uint64_t agreement : ready) PlanOne(job, job.tensors.at(agreement));
    return;
  }
  NextPlanVersion(job, PlanReason::kDeclare);
  for (size_t i = 0; i < ready.size(); ++i) {
    Reserve(job, job.tensors.at(ready[i]), std::move((*plans)[i]));
  }
}

void Membership::PlanOne(Job& job, Tensor& tensor) {
  if (job.state != v1::READY) return;
  PlannerJob view = ViewOf(job);
  if (view.servers.empty()) {
    return Refuse(job, tensor, "resources", kExitBadConfiguration,
                  absl::StrFormat("tensor '%s' cannot be summed because there is no summation "
                                  "server: start addend-summation, or do not switch off "
                                  "--colocated-summation",
                                  tensor.descriptor.name()));
  }
  for (PlannerServer& server : view.servers) {
    const auto limit = tensor.limit_bytes.find(server.id);
    if (limit != tensor.limit_bytes.end()) {
      server.load.free_bytes = std::min(server.load.free_bytes, limit->second);
    }
  }
  const PartitionSize partition_size = PartitionSizeOf(job);
  const v1::TensorDescriptor* descriptor = &tensor.descriptor;
  auto plans = PlanTensors({&descriptor, 1}, partition_size, &view);
  if (!plans.ok()) {
    const absl::Status why = absl::IsResourceExhausted(plans.status())
                                 ? NoRoom(tensor.descriptor, partition_size, view)
                                 : plans.status();
    return Refuse(job, tensor, "resources", kExitBadConfiguration, Message(why));
  }
  NextPlanVersion(job, PlanReason::kDeclare);
  Reserve(job, tensor, std::move(plans->front()));
}

// Every attempt has a tensor id of its own, so that a server never confuses two.
void Membership::Reserve(Job& job, Tensor& tensor, v1::TensorPlan plan) {
  const TensorId id(job.next_tensor++);
  plan.set_tensor_id(id.value());
  tensor.plan = std::move(plan);
  tensor.stage = Stages::RESERVING;
  tensor.refusers.clear();
  job.by_tensor_id[id.value()] = tensor.agreement;
  TakeLoad(job, tensor);
  tensor.awaited.clear();
  for (const auto& [server, owned] : tensor.owned) {
    tensor.awaited.insert(server);
    AskToHold(job, tensor, server, owned);
  }
  event_.changed_agreements.insert({job.id, tensor.agreement});
  event_.changed_plans.insert({job.id, tensor.agreement});
  ++event_.decision->planned;
  if (tensor.awaited.empty()) Publish(job, tensor);  // no elements, no partitions
}

// Adds the tensor's plan to the books: what each server owns, and its load and memory.
void Membership::TakeLoad(Job& job, Tensor& tensor) {
  tensor.owned.clear();
  const std::map<uint32_t, v1::PartitionMove> moves = MovesOf(tensor);
  ForEachPartition(tensor.plan, [&](const PlannedPartition& partition) {
    const auto move = moves.find(partition.index);
    if (move == moves.end()) return TakePartition(job, tensor, partition);
    Hold(tensor, partition);
    TakePartition(job, tensor, MovedTo(partition, PlaceOf(move->second)));
  });
}

void Membership::TakePartition(Job& job, Tensor& tensor, const PlannedPartition& partition) {
  Hold(tensor, partition);
  AddLoad(job, partition);
}

void Membership::AddLoad(Job& job, const PlannedPartition& partition) {
  JobLoad& load = job.loads[partition.server];
  load.bytes += partition.payload_bytes;
  if (load.shards.size() <= partition.shard) load.shards.resize(partition.shard + 1, 0);
  load.shards[partition.shard] += partition.payload_bytes;
}

// The server has its memory.
void Membership::Hold(Tensor& tensor, const PlannedPartition& partition) {
  Owned& owned = tensor.owned[partition.server];
  owned.partitions.push_back(partition.index);
  owned.shards.push_back(partition.shard);
  owned.accumulator_bytes += partition.accumulator_bytes;
  const auto server = servers_.find(partition.server);
  if (server == servers_.end() || server->second.free_bytes == ServerLoad::kUnlimited) return;
  uint64_t& free = server->second.free_bytes;
  free -= std::min(free, partition.accumulator_bytes);
}

void Membership::DropLoad(Job& job, const PlannedPartition& partition) {
  JobLoad& load = job.loads[partition.server];
  load.bytes -= partition.payload_bytes;
  load.shards[partition.shard] -= partition.payload_bytes;
}

// Takes it out of the books again; the servers that have it are told, unless they are in `except`.
void Membership::Unreserve(Job& job, Tensor& tensor, const std::set<ServerId>& except) {
  const std::map<uint32_t, v1::PartitionMove> moves = MovesOf(tensor);
  ForEachPartition(tensor.plan, [&](const PlannedPartition& partition) {
    const auto move = moves.find(partition.index);
    DropLoad(job, move == moves.end() ? partition : MovedTo(partition, PlaceOf(move->second)));
  });
  for (const auto& [id, owned] : tensor.owned) {
    const auto server = servers_.find(id);
    if (server == servers_.end() || except.contains(id)) continue;
    ReleasesFor(id, job)->add_release_tensors(tensor.plan.tensor_id());
    if (server->second.free_bytes == ServerLoad::kUnlimited) continue;
    server->second.free_bytes = std::min(server->second.free_bytes + owned.accumulator_bytes,
                                         server->second.info.memory_limit_bytes());
  }
  job.by_tensor_id.erase(tensor.plan.tensor_id());
  tensor.owned.clear();
  tensor.awaited.clear();
  tensor.plan.Clear();
  event_.changed_plans.erase({job.id, tensor.agreement});
  event_.deleted.push_back(records::PlanKey(job.id.value(), tensor.agreement));
}

void Membership::TakeAnswer(Server& server, const v1::AckReservationRequest& answer) {
  const auto found = server.unanswered.find(answer.update_id());
  if (found == server.unanswered.end())
    return;  // superseded by a full update, which it answers too
  const std::vector<std::pair<JobId, TensorId>> asked = std::move(found->second);
  server.unanswered.erase(found);
  NoteFreeBytes(server, answer.free_bytes());
  std::map<std::pair<JobId, TensorId>, std::string> refused;
  for (const v1::RefusedTensor& tensor : answer.refused()) {
    refused[{JobId(tensor.job_id()), TensorId(tensor.tensor_id())}] = tensor.reason();
  }
  const ServerId id = server.id;
  for (const auto& key : asked) {
    const auto job = jobs_.find(key.first);
    if (job == jobs_.end()) continue;
    Tensor* tensor = FindTensor(job->second, key.second);
    if (tensor == nullptr) continue;
    if (const auto why = refused.find(key); why != refused.end()) {
      NoteRefusal(servers_.at(id), job->second, *tensor, why->second);
    }
    // A later update may make it the owner of more of this tensor: then this is not yet the answer.
    if (tensor->stage == Stages::PLANNED && !server.Awaits(key)) {
      NewOwnerAnswered(job->second, *tensor, id);
    }
    if (tensor->stage != Stages::RESERVING) continue;
    tensor->awaited.erase(id);
    ServerAnswered(job->second, *tensor);
  }
  for (auto& [job_id, job] : jobs_) {
    if (!server.Awaits(job_id)) job.change.awaited.erase(id);
  }
}

// The server's own count, less what is on its way to it.
void Membership::NoteFreeBytes(Server& server, uint64_t free_bytes) {
  if (free_bytes == ServerLoad::kUnlimited) {
    server.free_bytes = ServerLoad::kUnlimited;
    return;
  }
  for (const auto& [update, tensors] : server.unanswered) {
    for (const auto& [job_id, tensor_id] : tensors) {
      const auto job = jobs_.find(job_id);
      if (job == jobs_.end()) continue;
      const Tensor* tensor = FindTensor(job->second, tensor_id);
      if (tensor == nullptr || !tensor->owned.contains(server.id)) continue;
      free_bytes -= std::min(free_bytes, tensor->owned.at(server.id).accumulator_bytes);
    }
  }
  server.free_bytes = free_bytes;
}

void Membership::NoteRefusal(const Server& server, Job& job, Tensor& tensor,
                             const std::string& reason) {
  Say(absl::StrFormat("job '%s': %s refused tensor '%s': %s", job.name, NameOf(server),
                      tensor.descriptor.name(), reason));
  if (tensor.stage == Stages::PLANNED && tensor.recovering.contains(server.id)) {
    FailJob(job,
            absl::StrFormat("a summation server was lost, and %s has no room for what it summed of "
                            "tensor '%s': %s",
                            NameOf(server), tensor.descriptor.name(), reason),
            kExitTemporary, "resources");
    return;
  }
  if (tensor.stage == Stages::PLANNED && job.change.awaited.contains(server.id)) {
    return CancelMoves(job, tensor, server.id);  // all stays as it is
  }
  if (tensor.stage == Stages::PLANNED) {
    FailJob(job,
            absl::StrFormat("%s no longer holds its partitions of tensor '%s': %s", NameOf(server),
                            tensor.descriptor.name(), reason),
            kExitInternal, "internal");
    return;
  }
  tensor.refusers.insert(server.id);
  // Whatever the server counts as free, it has to be asked for less than now; and not a third time.
  const uint64_t asked = tensor.owned.at(server.id).accumulator_bytes;
  const bool again = tensor.limit_bytes.contains(server.id);
  tensor.limit_bytes[server.id] = again || asked == 0 ? 0 : std::min(server.free_bytes, asked - 1);
}

// When the last server of its plan has answered, a tensor is published or planned again.
void Membership::ServerAnswered(Job& job, Tensor& tensor) {
  if (!tensor.awaited.empty()) return;
  if (tensor.refusers.empty()) return Publish(job, tensor);
  const std::set<ServerId> refusers = tensor.refusers;
  Unreserve(job, tensor, refusers);
  tensor.stage = Stages::COLLECTING;
  event_.changed_agreements.insert({job.id, tensor.agreement});
  PlanOne(job, tensor);
}

void Membership::Publish(Job& job, Tensor& tensor) {
  tensor.stage = Stages::PLANNED;
  tensor.limit_bytes.clear();
  event_.changed_agreements.insert({job.id, tensor.agreement});
  v1::NodeUpdate& update = Broadcast(job);
  *update.add_tensors() = tensor.plan;
  NoteFirstPlan(job, tensor);
  bool added = false;
  for (const auto& [server, owned] : tensor.owned) {
    added |= job.plan_servers.insert(server).second;
    const auto found = servers_.find(server);
    if (found != servers_.end() && found->second.draining) job.rebalance = PlanReason::kDrain;
  }
  if (added) FillServers(job, &update);
}

void Membership::UndeclareOne(Job& job, NodeId node, const std::string& name,
                              std::vector<uint64_t>* ready) {
  const auto agreements = job.by_name.find(name);
  if (agreements == job.by_name.end()) return;
  for (const uint64_t agreement : agreements->second) {
    Tensor& tensor = job.tensors.at(agreement);
    if (!tensor.declared.Contains(node) || !tensor.undeclared.Insert(node)) continue;
    event_.changed_agreements.insert({job.id, agreement});
    if (AllIn(job, tensor.undeclared)) RemoveTensor(job, agreement, ready);
    return;
  }
}

// All nodes have undeclared it, so it is the front one of its name: the next one follows.
void Membership::RemoveTensor(Job& job, uint64_t agreement, std::vector<uint64_t>* ready) {
  Tensor& tensor = job.tensors.at(agreement);
  const std::string name = tensor.descriptor.name();
  if (tensor.stage == Stages::PLANNED) Broadcast(job).add_removed(tensor.plan.tensor_id());
  if (tensor.stage == Stages::PLANNED || tensor.stage == Stages::RESERVING) {
    Unreserve(job, tensor, {});
  }
  std::erase(*ready, agreement);
  event_.changed_agreements.erase({job.id, agreement});
  event_.deleted.push_back(records::AgreementKey(job.id.value(), agreement));
  job.tensors.erase(agreement);
  std::deque<uint64_t>& agreements = job.by_name.at(name);
  agreements.pop_front();
  if (agreements.empty()) {
    job.by_name.erase(name);
  } else {
    Evaluate(job, job.tensors.at(agreements.front()), ready);
  }
}

// The generation is over. The servers learn it from its number, or are told to forget the job.
void Membership::DropTensors(Job& job) {
  for (auto& [agreement, tensor] : job.tensors) {
    for (const auto& [id, owned] : tensor.owned) {
      const auto server = servers_.find(id);
      if (server == servers_.end() || server->second.free_bytes == ServerLoad::kUnlimited) continue;
      server->second.free_bytes = std::min(server->second.free_bytes + owned.accumulator_bytes,
                                           server->second.info.memory_limit_bytes());
    }
    event_.changed_agreements.erase({job.id, agreement});
    event_.changed_plans.erase({job.id, agreement});
    event_.deleted.push_back(records::AgreementKey(job.id.value(), agreement));
    event_.deleted.push_back(records::PlanKey(job.id.value(), agreement));
  }
  job.tensors.clear();
  job.by_name.clear();
  job.by_tensor_id.clear();
  job.loads.clear();
  job.plan_servers.clear();
  job.change = Change();
  job.pace = Pace();
  job.rebalance.reset();
  for (auto& [id, update] : event_.server_updates) {
    auto* jobs = update.mutable_jobs();
    jobs->erase(std::remove_if(jobs->begin(), jobs->end(),
                               [&job](const v1::JobReservation& reservation) {
                                 return reservation.job_id() == job.id.value();
                               }),
                jobs->end());
  }
  event_.broadcasts.erase(job.id);
}

}  // namespace addend
