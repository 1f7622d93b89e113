// New owners for the partitions of a lost server.
#include "services/scheduler/replacement.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "lib/base/failure.h"
#include "lib/base/strings.h"
#include "services/scheduler/job_servers.h"
#include "services/scheduler/updates.h"

namespace addend {
namespace {

using Stages = v1::AgreementRecord;

// For so long a job does without a CPU server that a node of it could not reach, whatever becomes
// of its generation: else it could accuse the server again and again.
constexpr absl::Duration kAvoidance = absl::Minutes(10);

}  // namespace

// The present owners keep the partitions, and there is nothing to recover. Does nothing once
// hand-overs may have been ordered.
void Replacement::GiveUpMovesTo(ServerId server) {
  Change& change = job_.current.change;
  if (!change.under_way() || change.MayBeOrdered()) return;
  const auto goes_there = [server](const v1::PartitionMove& move) {
    return move.server() == server.value();
  };
  for (auto& [agreement, tensor] : job_.current.tensors) {
    const auto& moves = tensor.plan.moves();
    if (std::none_of(moves.begin(), moves.end(), goes_there)) continue;
    ledger_.CancelMoves(&tensor, server);
    job_.current.rebalance = PlanReason::kLoss;
  }
  change.awaited.erase(server);
}

// Another plan would have another tensor id, which nodes that have this plan would not take.
bool Replacement::IsUnknown(DeclaredTensor* tensor) {
  if (tensor->stage != Stages::RESERVING) return false;
  const bool known = tensor->restored && tensor->refusers.empty();
  if (known) placement_.TakeAsPublished(tensor);
  return !known;
}

void Replacement::LoseServer(ServerId server, const std::string& why) {
  GiveUpMovesTo(server);
  std::vector<uint64_t> reserving;
  std::vector<uint64_t> published;
  bool held = false;
  for (auto& [agreement, tensor] : job_.current.tensors) {
    if (!tensor.owned.contains(server)) {
      ledger_.OwnerReady(&tensor, server);  // it holds nothing any more
      continue;
    }
    held = true;
    if (IsUnknown(&tensor)) {
      reserving.push_back(agreement);
    } else if (!tensor.owned.at(server).partitions.empty()) {
      published.push_back(agreement);
    } else {  // it only relays: see EndRelays()
      tensor.owned.erase(server);
      ledger_.OwnerReady(&tensor, server);
    }
  }
  if (!published.empty()) Recover(server, published, why);
  for (const uint64_t agreement : reserving) {
    DeclaredTensor* const tensor = job_.current.tensors.Find(agreement);
    if (tensor != nullptr) placement_.LoseReservation(server, tensor);
  }
  if (held) EndRelays(why);
}

void Replacement::LeaveServer(Server* server, const std::string& why) {
  const ServerId id = server->id;
  job_.avoided[id] = scope_.changes.now() + kAvoidance;
  GiveUpMovesTo(id);
  uint64_t freed = 0;
  for (const auto& [agreement, tensor] : job_.current.tensors) {
    const auto owned = tensor.owned.find(id);
    if (owned != tensor.owned.end()) freed += owned->second.accumulator_bytes;
  }
  scope_.fleet.Release(id, freed);
  for (auto& [update, asked] : server->unanswered) {
    std::erase_if(asked, [this](const auto& one) { return one.first == job_.id; });
  }
  scope_.changes.ReleaseJob(id, job_.id, Generation());
  scope_.changes.Note(
      event_kind::kPlanned, job_.name,
      absl::StrFormat("job '%s' does without %s: %s", job_.name, NameOf(*server), why));
  LoseServer(id, why);
  job_.current.plan_servers.erase(id);
  for (auto& [set, loads] : job_.current.loads) loads.erase(id);
  job_.current.change.awaited.erase(id);
}

Replacement::Lost Replacement::PartitionsOf(ServerId lost,
                                            const std::vector<uint64_t>& agreements) {
  Lost result;
  for (const uint64_t agreement : agreements) {
    DeclaredTensor& tensor = job_.current.tensors.at(agreement);
    const std::map<uint32_t, v1::PartitionMove> moves = MovesOf(tensor);
    const auto visit = [&](const PlannedPartition& partition) {
      const auto move = moves.find(partition.index);
      if (move != moves.end() &&
          (partition.server == lost || move->second.server() == lost.value())) {
        result.moving[agreement].insert(partition.index);
        ++result.moving_count;
      } else if (partition.server == lost) {
        Lost::Whole& whole = result.whole[tensor.participants];
        whole.partitions.push_back(partition);
        whole.tensors.push_back(&tensor);
        ++result.whole_count;
      }
    };
    ForEachPartition(tensor.plan, job_.settings.num_nodes(), visit);
  }
  return result;
}

// A server of which nothing was heard since a restart is still better than nobody.
absl::StatusOr<std::vector<PartitionPlace>> Replacement::OwnersOf(
    std::span<const PlannedPartition> partitions, const Participants& set) const {
  const auto owners_among = [&](Candidates candidates) {
    PlannerJob view = ViewOf(job_, scope_.fleet, scope_.jobs, set, /*coming=*/0, candidates);
    return ReassignPartitions(partitions, &view);
  };
  auto owners = owners_among(Candidates::kHeard);
  return owners.ok() ? owners : owners_among(Candidates::kAll);
}

void Replacement::Recover(ServerId lost, const std::vector<uint64_t>& agreements,
                          const std::string& why) {
  JobGeneration& current = job_.current;
  // A failed generation recovers too: the nodes wait for the owners' word on open rounds.
  if (current.state == v1::FORMING) return;
  const Lost partitions = PartitionsOf(lost, agreements);
  ledger_.NextPlanVersion(PlanReason::kLoss);
  for (const uint64_t agreement : agreements) {
    DeclaredTensor& tensor = current.tensors.at(agreement);
    tensor.owned.erase(lost);
    tensor.recovering.erase(lost);
    scope_.changes.StorePlan(job_.id, agreement);
  }
  for (const auto& [set, whole] : partitions.whole) {
    const auto owners = OwnersOf(whole.partitions, set);
    if (!owners.ok()) {
      return lifecycle_.Fail(
          absl::StrFormat("%s, and nobody else can sum its %d partitions: %s", why,
                          whole.partitions.size(), Message(owners.status())),
          FailureKind::kShortage);
    }
    for (size_t i = 0; i < whole.partitions.size(); ++i) {
      ledger_.Move(whole.tensors[i], whole.partitions[i], (*owners)[i]);
    }
  }
  for (const auto& [agreement, moving] : partitions.moving) {
    ledger_.KeepAtSurvivors(&current.tensors.at(agreement), moving, lost);
  }
  for (auto& [set, loads] : current.loads) loads.erase(lost);
  current.change.awaited.erase(lost);
  current.pace.StartOver(scope_.changes.now());
  // The change that is cut short, for a server that drains or has joined, may be due again.
  if (!partitions.moving.empty()) current.rebalance = PlanReason::kLoss;
  for (const uint64_t agreement : agreements) AskNewOwners(&current.tensors.at(agreement));
  scope_.changes.Note(
      event_kind::kPlanned, job_.name,
      absl::StrFormat("job '%s': %d partitions of %d tensors have new owners, because %s (plan "
                      "version %d)",
                      job_.name, partitions.whole_count + partitions.moving_count,
                      agreements.size(), why, job_.plan_version.value()));
}

// Asks the servers that the latest plan version has made owners of partitions of this tensor.
void Replacement::AskNewOwners(DeclaredTensor* tensor) {
  std::map<ServerId, Owned> added;
  ForEachPartition(tensor->plan, job_.settings.num_nodes(), [&](const PlannedPartition& partition) {
    if (tensor->plan.versions(partition.index) != job_.plan_version.value()) return;
    added[partition.server].partitions.push_back(partition.index);
    added[partition.server].shards.push_back(partition.shard);
  });
  for (const auto& [id, owned] : added) {
    tensor->recovering.insert(id);
    ledger_.Ask(*tensor, id, owned);
  }
  job_.current.told.unsettled.insert(tensor->agreement);
}

void Replacement::RecoverAll(const std::string& how) {
  JobGeneration& current = job_.current;
  if (current.state == v1::FORMING) return;
  ledger_.NextPlanVersion(PlanReason::kLoss);
  std::set<ServerId> colocated;
  for (const Server* server : scope_.fleet.ColocatedWith(job_.name)) {
    if (MayUse(job_, *server)) colocated.insert(server->id);
  }
  std::set<ServerId> concerned;
  size_t partitions = 0;
  for (auto& [agreement, tensor] : current.tensors) {
    if (tensor.stage != Stages::PLANNED) continue;
    if (tensor.plan.has_relays()) {
      for (const auto& [id, owned] : tensor.owned) concerned.insert(id);
      ledger_.EndRelays(&tensor);
    }
    partitions += RecoverInPlace(&tensor);
    if (tensor.recovering.empty()) continue;  // no elements, no partitions
    tensor.recovering.insert(colocated.begin(), colocated.end());
    concerned.insert(tensor.recovering.begin(), tensor.recovering.end());
  }
  current.change = Change();
  current.rebalance = PlanReason::kLoss;
  current.pace.StartOver(scope_.changes.now());
  // A server that has not come back yet gets it with its next watch.
  for (const ServerId id : concerned) scope_.changes.SendAll(id);
  scope_.changes.Note(event_kind::kPlanned, job_.name,
                      absl::StrFormat("job '%s': all %d partitions are recovered %s (plan "
                                      "version %d)",
                                      job_.name, partitions, how, job_.plan_version.value()));
}

void Replacement::EndRelays(const std::string& why) {
  JobGeneration& current = job_.current;
  const bool any = std::any_of(current.tensors.begin(), current.tensors.end(),
                               [](const auto& entry) { return entry.second.plan.has_relays(); });
  if (!any) return;
  current.relaying.ended = true;
  std::vector<uint64_t> reserving;
  for (auto& [agreement, tensor] : current.tensors) {
    if (tensor.plan.has_relays() && IsUnknown(&tensor)) reserving.push_back(agreement);
  }
  for (const uint64_t agreement : reserving) {
    DeclaredTensor* const tensor = current.tensors.Find(agreement);
    if (tensor != nullptr) placement_.ReserveAnew(tensor, {});
  }
  RecoverAll(absl::StrFormat("by their owners, without relays: %s", why));
}

// Returns the number of the tensor's partitions.
size_t Replacement::RecoverInPlace(DeclaredTensor* tensor) {
  tensor->recovering.clear();
  std::set<ServerId> owners_to_be;
  for (const auto& [index, move] : MovesOf(*tensor)) owners_to_be.insert(ServerId(move.server()));
  for (const ServerId id : owners_to_be) ledger_.CancelMoves(tensor, id);
  std::vector<PlannedPartition> all;
  ForEachPartition(tensor->plan, job_.settings.num_nodes(),
                   [&all](const PlannedPartition& partition) { all.push_back(partition); });
  for (const PlannedPartition& partition : all) {
    SetOwner(&tensor->plan, partition.index, {partition.server, partition.shard},
             job_.plan_version.value());
    tensor->recovering.insert(partition.server);
  }
  job_.current.told.unsettled.insert(tensor->agreement);
  scope_.changes.StorePlan(job_.id, tensor->agreement);
  return all.size();
}

}  // namespace addend
