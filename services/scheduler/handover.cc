// Planned changes of a job's plan.
#include "services/scheduler/handover.h"

#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/strings.h"
#include "services/scheduler/job_servers.h"
#include "services/scheduler/relays.h"
#include "services/scheduler/updates.h"

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
    case PlanReason::kEncoding:
      return "payloads take another number of bytes on the wire";
    case PlanReason::kPace:
      break;
  }
  return "a server has become slower or faster";
}

}  // namespace

void Handover::Advance() {
  Change& change = job_.current.change;
  if (job_.current.state != v1::READY || !change.under_way()) return;
  if (change.phase == Phase::kReserving && change.awaited.empty() && !MovesAreHeldBack(job_)) {
    Announce();
  }
  if (change.phase == Phase::kAnnounced && job_.AllTakingPartIn(change.connected)) {
    OrderHandOvers();
  }
  if (change.phase == Phase::kHandingOver && job_.AllTakingPartIn(change.following)) Finish();
}

void Handover::TakeAnnounced(const Node& node, const v1::Announced& told) {
  Change& change = job_.current.change;
  if (!job_.TakesPart(node) || told.job_id() != job_.id.value()) return;
  if (Generation(told.generation()) != job_.current.number) return;
  if (PlanVersion(told.plan_version()) < change.version) change.may_have_been_ordered = false;
}

void Handover::Plan() {
  JobGeneration& current = job_.current;
  if (!current.rebalance || current.state != v1::READY || current.change.under_way()) return;
  if (!job_.AllHeard()) return;                // nodes may know of a plan that the store has lost
  if (!current.told.answered.empty()) return;  // the nodes have yet to be told of that
  for (const auto& [agreement, tensor] : current.tensors) {
    if (!tensor.recovering.empty()) return;  // and of that
  }
  const PlanReason reason = *std::exchange(current.rebalance, std::nullopt);
  std::set<uint64_t> changed;
  size_t moved = 0;
  size_t all = 0;
  for (const Participants& set : SetsOf(job_)) {
    const auto [partitions, agreements] = PublishedPartitionsOf(job_, set);
    PlannerJob view = ViewOf(job_, scope_.fleet, scope_.jobs, set);
    KeepOwners(ChooseRelays(job_, scope_.fleet), &view);
    const auto moves = PlanMoves(partitions, view);
    if (!moves.ok()) {
      scope_.changes.Say(absl::StrFormat("job '%s': the tensors of %s stay where they are: %s",
                                         job_.name, set.Text(), Message(moves.status())));
      continue;
    }
    all += partitions.size();
    if (moves->empty()) continue;
    if (moved == 0) ledger_.NextPlanVersion(reason);
    current.change.version = job_.plan_version;
    moved += moves->size();
    for (const PlannedMove& move : *moves) {
      const uint64_t agreement = agreements[move.partition];
      ledger_.PlanMove(&current.tensors.at(agreement), partitions[move.partition], move.to);
      changed.insert(agreement);
    }
  }
  if (moved == 0) return;
  for (const uint64_t agreement : changed) AskOwnersToBe(current.tensors.at(agreement));
  scope_.changes.Note(
      event_kind::kPlanned, job_.name,
      absl::StrFormat("job '%s': %d of %d partitions change their server, because %s (plan "
                      "version %d)",
                      job_.name, moved, all, Explain(reason), job_.plan_version.value()));
}

void Handover::AskOwnersToBe(const DeclaredTensor& tensor) {
  std::map<ServerId, Owned> added;
  for (const v1::PartitionMove& move : tensor.plan.moves()) {
    Owned& owned = added[ServerId(move.server())];
    owned.partitions.push_back(move.partition());
    owned.shards.push_back(move.shard());
  }
  for (const auto& [id, owned] : added) {
    job_.current.change.awaited.insert(id);
    ledger_.Ask(tensor, id, owned);
  }
}

void Handover::Announce() {
  Change& change = job_.current.change;
  change.phase = Phase::kAnnounced;
  change.number = scope_.changes.NextNumber();
  v1::NodeUpdate& update = scope_.changes.Broadcast(job_.id);
  for (const auto& [agreement, tensor] : job_.current.tensors) {
    // A former scheduler may have told the nodes of moves that have been given up since.
    const bool concerned = !tensor.plan.moves().empty() || change.restored;
    if (tensor.stage == Stages::PLANNED && concerned && tensor.recovering.empty()) {
      *update.add_tensors() = tensor.plan;
    }
  }
  scope_.changes.TellServers(job_.id);
}

void Handover::OrderHandOvers() {
  job_.current.change.phase = Phase::kHandingOver;
  for (const auto& [agreement, tensor] : job_.current.tensors) {
    std::set<ServerId> owners;
    for (const v1::PartitionMove& move : tensor.plan.moves()) {
      owners.insert(ServerId(tensor.plan.servers(static_cast<int>(move.partition()))));
    }
    for (const ServerId owner : owners) {
      AddHandOvers(job_, tensor, owner, scope_.changes.ReservationFor(owner, job_.id));
    }
  }
}

// Every node follows: the moves are done, and the former owners are released.
void Handover::Finish() {
  JobGeneration& current = job_.current;
  current.plan_servers.clear();
  for (auto& [agreement, tensor] : current.tensors) {
    ledger_.FinishMoves(&tensor);
    if (tensor.stage != Stages::PLANNED) continue;
    for (const auto& [server, owned] : tensor.owned) current.plan_servers.insert(server);
  }
  scope_.changes.Note(event_kind::kPlanned, job_.name,
                      absl::StrFormat("job '%s': plan version %d is in force", job_.name,
                                      current.change.version.value()));
  current.change = Change();
  scope_.changes.TellServers(job_.id);
}

}  // namespace addend
