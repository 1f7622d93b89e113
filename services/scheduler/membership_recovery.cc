// Membership: the partitions of a server that is gone find new owners. The scheduler of
// spec/recovery.pml: the new owner is told first (RECOVERING_OWNER), and when it has answered, the
// nodes (RECOVERING_NODES); between the two nothing but the stored plan says so, which a restarted
// scheduler repeats.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "lib/base/exit_codes.h"
#include "lib/base/strings.h"
#include "services/scheduler/membership_scope.h"

namespace addend {
namespace {

using Stages = v1::AgreementRecord;

}  // namespace

// A server takes its partitions along: those that are published are recovered by others, those that
// were only being reserved are planned anew. With a colocated one its node is lost.
void Membership::ServerGone(Job& job, const Server& server, const std::string& why) {
  if (server.colocated()) NodeGoneWith(job, server, why);
  std::vector<uint64_t> reserving;
  std::vector<uint64_t> published;
  for (const auto& [agreement, tensor] : job.tensors) {
    if (!tensor.owned.contains(server.id)) continue;
    (tensor.stage == Stages::RESERVING ? reserving : published).push_back(agreement);
  }
  if (!published.empty()) Recover(job, server.id, published, why);
  for (const uint64_t agreement : reserving) {
    const auto found = job.tensors.find(agreement);
    if (found == job.tensors.end()) continue;
    Tensor& tensor = found->second;
    tensor.awaited.erase(server.id);
    tensor.refusers.insert(server.id);
    ServerAnswered(job, tensor);
  }
}

// Only if others need what the server has summed.
void Membership::NodeGoneWith(Job& job, const Server& server, const std::string& why) {
  const auto owned = std::count_if(job.tensors.begin(), job.tensors.end(), [&](const auto& tensor) {
    return tensor.second.stage == Stages::PLANNED && tensor.second.owned.contains(server.id);
  });
  const NodeId rank(server.info.colocated_node());
  if (owned == 0 || job.gone.contains(rank)) return;
  const auto node = job.nodes.find(rank);
  if (node != job.nodes.end() && job.TakesPart(node->second)) {
    return RemoveNode(job, rank, absl::StrFormat("%s was lost: %s", NameOf(job, node->second), why),
                      true);
  }
  // The node has ended already, and cannot say any more what it holds.
  FailJob(job,
          absl::StrFormat("%s, and with it the partitions it summed for %d tensors of job '%s'",
                          why, owned, job.name),
          kExitTemporary, "peer_lost");
  if (node == job.nodes.end()) LoseNode(job, rank, why);
}

void Membership::Recover(Job& job, ServerId dead, const std::vector<uint64_t>& agreements,
                         const std::string& why) {
  // Of a generation that has failed too: the nodes wait for the owners' word on what is open.
  if (job.state == v1::FORMING) return;
  PlannerJob view = ViewOf(job);
  std::vector<PlannedPartition> lost;
  std::vector<Tensor*> tensors;                      // of `lost`
  std::map<uint64_t, std::set<uint32_t>> half_lost;  // by agreement
  size_t half_lost_count = 0;
  for (const uint64_t agreement : agreements) {
    Tensor& tensor = job.tensors.at(agreement);
    const std::map<uint32_t, v1::PartitionMove> moves = MovesOf(tensor);
    ForEachPartition(tensor.plan, [&](const PlannedPartition& partition) {
      const auto move = moves.find(partition.index);
      if (move != moves.end() &&
          (partition.server == dead || move->second.server() == dead.value())) {
        half_lost[agreement].insert(partition.index);
        ++half_lost_count;
      } else if (partition.server == dead) {
        lost.push_back(partition);
        tensors.push_back(&tensor);
      }
    });
  }
  const auto owners = ReassignPartitions(lost, &view);
  if (!owners.ok()) {
    return FailJob(job,
                   absl::StrFormat("%s, and nobody else can sum its %d partitions: %s", why,
                                   lost.size(), Message(owners.status())),
                   kExitTemporary, "resources");
  }
  NextPlanVersion(job, PlanReason::kLoss);
  for (const uint64_t agreement : agreements) {
    Tensor& tensor = job.tensors.at(agreement);
    tensor.owned.erase(dead);
    tensor.recovering.erase(dead);
    event_.changed_plans.insert({job.id, agreement});
  }
  for (size_t i = 0; i < lost.size(); ++i) {
    MovePartition(job, *tensors[i], lost[i], (*owners)[i]);
  }
  for (const auto& [agreement, partitions] : half_lost) {
    KeepAtSurvivors(job, job.tensors.at(agreement), partitions, dead);
  }
  job.loads.erase(dead);
  job.change.awaited.erase(dead);
  job.pace.StartOver(event_.now);
  // What was under way for a server that drains, or has joined, may have to be planned again.
  if (!half_lost.empty()) job.rebalance = PlanReason::kLoss;
  for (const uint64_t agreement : agreements) AskNewOwners(job, job.tensors.at(agreement));
  Note(event_kind::kPlanned, job.name,
       absl::StrFormat("job '%s': %d partitions of %d tensors have new owners, because %s (plan "
                       "version %d)",
                       job.name, lost.size() + half_lost_count, agreements.size(), why,
                       job.plan_version.value()));
}

// In the books; nobody is told yet.
void Membership::MovePartition(Job& job, Tensor& tensor, const PlannedPartition& partition,
                               const PartitionPlace& to) {
  SetOwner(&tensor.plan, partition.index, to, job.plan_version.value());
  DropLoad(job, partition);
  TakePartition(job, tensor, MovedTo(partition, to));
  job.plan_servers.insert(to.server);
}

// One end of a move that was under way is lost. The other has the partition, though perhaps not all
// nodes know: it recovers. It must not be a third one: a colocated server that lives may still sum
// in its node's memory, and only its own recovery makes it start over.
void Membership::KeepAtSurvivors(Job& job, Tensor& tensor, const std::set<uint32_t>& partitions,
                                 ServerId dead) {
  v1::TensorPlan& plan = tensor.plan;
  std::map<uint32_t, v1::PartitionMove> moves = MovesOf(tensor);
  ForEachPartition(plan, [&](const PlannedPartition& partition) {
    if (!partitions.contains(partition.index)) return;
    PartitionPlace survivor{partition.server, partition.shard};
    if (partition.server == dead) {
      survivor = PlaceOf(moves.at(partition.index));
    } else {
      AddLoad(job, partition);
    }
    SetOwner(&plan, partition.index, survivor, job.plan_version.value());
    moves.erase(partition.index);
  });
  plan.clear_moves();
  for (const auto& [index, move] : moves) *plan.add_moves() = move;
}

// Tells the servers that the latest plan has made owners of partitions of this tensor.
void Membership::AskNewOwners(Job& job, Tensor& tensor) {
  std::map<ServerId, Owned> added;
  ForEachPartition(tensor.plan, [&](const PlannedPartition& partition) {
    if (tensor.plan.versions(partition.index) != job.plan_version.value()) return;
    added[partition.server].partitions.push_back(partition.index);
    added[partition.server].shards.push_back(partition.shard);
  });
  for (const auto& [id, owned] : added) {
    tensor.recovering.insert(id);
    AskToHold(job, tensor, id, owned);
  }
}

// A new owner is ready for the nodes' reports. When all of the tensor's are, the nodes are told.
void Membership::NewOwnerAnswered(Job& job, Tensor& tensor, ServerId server) {
  if (tensor.recovering.erase(server) == 0 || !tensor.recovering.empty()) return;
  v1::NodeUpdate& update = Broadcast(job);
  *update.add_tensors() = PlanForNodes(job, tensor);
  FillServers(job, &update);
}

}  // namespace addend
