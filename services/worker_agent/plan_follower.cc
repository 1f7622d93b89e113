// Steps of the node in recovery and in planned changes.
#include "services/worker_agent/plan_follower.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "lib/base/failure.h"
#include "lib/base/log.h"
#include "lib/base/status_macros.h"
#include "services/worker_agent/node_frames.h"

namespace addend {

void PlanFollower::Apply(const v1::NodeUpdate& update) {
  if (update.change() != change_.number) {
    change_.number = update.change();
    change_.connected_told = change_.following_told = false;
  }
  for (const uint32_t removed : update.removed()) Forget(TensorId(removed));
  for (const v1::TensorPlan& plan : update.tensors()) ApplyPlan(plan);
  for (const v1::TensorError& error : update.errors()) {
    const Shared tensor = Refused(error);
    if (tensor == nullptr) continue;
    tensor->agreement.refused = true;
    const auto code = error.kind() == TraitsOf(FailureKind::kResources).name
                          ? absl::StatusCode::kResourceExhausted
                          : absl::StatusCode::kFailedPrecondition;
    rounds_->FailTensor(tensor.get(), HearFailure(absl::Status(code, error.message()),
                                                  {error.kind(), error.exit_code()}));
    if (TensorTable::IsDone(*tensor)) Remove(tensor);
  }
}

// By its name only where that cannot be the next tensor of the name: a node hears the refusal
// that goes to all nodes before it goes on.
PlanFollower::Shared PlanFollower::Refused(const v1::TensorError& error) const {
  if (error.tensor_id() != 0) return tensors_->ById(TensorId(error.tensor_id()));
  return error.number() != 0 ? tensors_->ByNumber(error.number()) : tensors_->ByName(error.name());
}

void PlanFollower::ApplyPlan(const v1::TensorPlan& plan) {
  if (const Shared known = tensors_->ById(TensorId(plan.tensor_id())); known != nullptr) {
    return FollowPlan(known, plan);
  }
  if (!state_->running()) return;
  const Shared tensor = tensors_->ByName(plan.tensor().name());
  if (tensor == nullptr || tensor->planned() || !tensor->agreement.declared) return;
  auto owners = FirstOwners(plan);
  if (!owners.ok()) return state_->Fail(owners.status());
  tensor->SetPlan(TensorId(plan.tensor_id()), std::max<uint64_t>(plan.partition_elements(), 1),
                  *std::move(owners));
  tensors_->EnterPlan(tensor);
  servers_->OnOwnersChanged();
  for (uint32_t partition = 0; partition < tensor->partitions(); ++partition) {
    if (tensor->owners[partition].reported) {
      SendReport(*context_.identity, *tensor, partition, FrameType::kRecover);
    }
  }
  TakeMoves(tensor, plan);
  rounds_->TryStart(tensor);
  if (TensorTable::IsDone(*tensor)) Remove(tensor);  // the ranks did not wait for the plan
}

void PlanFollower::Remove(const Shared& tensor) {
  rounds_->source()->Forget(*tensor);
  tensors_->Remove(tensor);
}

absl::StatusOr<std::vector<PartitionOwner>> PlanFollower::FirstOwners(const v1::TensorPlan& plan) {
  std::vector<PartitionOwner> owners;
  for (int i = 0; i < plan.servers_size(); ++i) {
    ADDEND_ASSIGN_OR_RETURN(ServerLink* const link,
                            servers_->LinkTo(plan.servers(i), plan.shards(i)));
    const PlanVersion version(i < plan.versions_size() ? plan.versions(i) : 0);
    // Another node's first round may have been with the first owner, so a later owner asks this
    // node too.
    owners.push_back({.link = link,
                      .version = version,
                      .reported = version != PlanVersion(),
                      .next = nullptr,
                      .next_version = PlanVersion()});
  }
  return owners;
}

void PlanFollower::FollowPlan(const Shared& tensor, const v1::TensorPlan& plan) {
  if (plan.servers_size() != static_cast<int>(tensor->partitions())) return;
  uint32_t moved = 0;
  for (int i = 0; i < plan.servers_size(); ++i) {
    PartitionOwner& owner = tensor->owners[i];
    const PlanVersion version(i < plan.versions_size() ? plan.versions(i) : 0);
    // A scheduler whose store has lost the tensor's publication has left out the owner for a while.
    const bool returns = version == owner.version && owner.link->given_up();
    if (version <= owner.version && !returns) continue;
    const auto link = servers_->LinkTo(plan.servers(i), plan.shards(i));
    if (!link.ok()) return state_->Fail(link.status());
    const bool recovers = !returns || owner.reported;
    Follow(tensor.get(), i, *link, version);
    owner.reported = recovers;
    if (recovers) {
      SendReport(*context_.identity, *tensor, i, FrameType::kRecover);
    } else {
      rounds_->Resend(tensor, i);
    }
    if (!returns) ++moved;
  }
  if (moved > 0) {
    spdlog::info("{} partition{} of '{}' {} new owners (plan version {})", moved,
                 moved == 1 ? "" : "s", tensor->shape.name, moved == 1 ? "has" : "have",
                 context_.counters->plan_version.value());
  }
  TakeMoves(tensor, plan);
}

void PlanFollower::TakeMoves(const Shared& tensor, const v1::TensorPlan& plan) {
  for (PartitionOwner& owner : tensor->owners) SetNext(&owner, nullptr, PlanVersion());
  for (const v1::PartitionMove& move : plan.moves()) {
    if (move.partition() >= tensor->partitions()) continue;
    PartitionOwner& owner = tensor->owners[move.partition()];
    if (PlanVersion(move.version()) <= owner.version) continue;
    const auto link = servers_->LinkTo(move.server(), move.shard());
    if (!link.ok()) return state_->Fail(link.status());
    SetNext(&owner, *link, PlanVersion(move.version()));
  }
}

void PlanFollower::SetNext(PartitionOwner* owner, ServerLink* next, PlanVersion version) {
  if (owner->next != nullptr) --change_.moves;
  if (next != nullptr) ++change_.moves;
  owner->next = next;
  owner->next_version = version;
}

// FOLLOW in spec/recovery.pml.
void PlanFollower::Follow(NodeTensor* tensor, uint32_t partition, ServerLink* link,
                          PlanVersion version) {
  PartitionOwner& owner = tensor->owners[partition];
  const PartitionId id(tensor->id, partition);
  owner.link->Arrived(id);
  // A late write of the former owner's would land in the room of a later round.
  if (owner.link != link && owner.link->IsReceiving(id)) {
    owner.link->Reset(absl::UnavailableError("a partition has another owner"));
  }
  SetNext(&owner, nullptr, PlanVersion());
  owner.link = link;
  owner.version = version;
  owner.reported = false;
  servers_->OnOwnersChanged();
}

void PlanFollower::Forget(TensorId id) {
  const Shared tensor = tensors_->ById(id);
  if (tensor == nullptr) return;
  for (PartitionOwner& owner : tensor->owners) SetNext(&owner, nullptr, PlanVersion());
  tensors_->ForgetPlan(id);
}

// A sealed round that a reset has lost is asked for first (M_MOVED_OVERTAKES in
// spec/recovery.pml).
void PlanFollower::OnMoved(const ServerLink* link, const FrameHeader& header) {
  const Shared tensor = FindOwned(*context_.identity, *tensors_, link, header);
  if (tensor == nullptr) return;
  const uint32_t partition = header.partition.index();
  PartitionOwner& owner = tensor->owners[partition];
  if (header.plan_version <= owner.version) return;
  if (tensor->rounds.Held(partition) < header.round) {
    return SendReport(*context_.identity, *tensor, partition, FrameType::kAck);
  }
  // It hands over only when all nodes have been told the next owner.
  if (owner.next == nullptr || owner.next_version != header.plan_version) {
    spdlog::error("{} has handed over partition {} of '{}' under plan version {}, which is unknown",
                  link->where(), partition, tensor->shape.name, header.plan_version.value());
    return;
  }
  Follow(tensor.get(), partition, owner.next, owner.next_version);
  if (tensor->asynchronous()) {  // the value goes on from the nodes' copies
    owner.reported = true;
    SendReport(*context_.identity, *tensor, partition, FrameType::kRecover);
  } else {
    rounds_->Resend(tensor, partition);
  }
  AckChange();
}

void PlanFollower::OnRecovered(const ServerLink* link, const FrameHeader& header) {
  const Shared tensor = FindOwned(*context_.identity, *tensors_, link, header);
  if (tensor == nullptr) return;
  PartitionOwner& owner = tensor->owners[header.partition.index()];
  if (!owner.reported || header.plan_version != owner.version) return;
  owner.reported = false;
  // The result of the newest round itself comes from a node that holds it.
  rounds_->Resend(tensor, header.partition.index(), header.round);
}

void PlanFollower::OnLinkOpen(const ServerLink* link) {
  const bool again = link->has_forgotten();
  for (const Shared& tensor : tensors_->InOrder()) {
    for (uint32_t partition = 0; partition < tensor->partitions(); ++partition) {
      const PartitionOwner& owner = tensor->owners[partition];
      // It may have handed over before it was connected.
      if (owner.link != link || (!again && owner.next == nullptr)) continue;
      SendReport(*context_.identity, *tensor, partition, FrameType::kAck);
      if (!again) continue;
      if (owner.reported) SendReport(*context_.identity, *tensor, partition, FrameType::kRecover);
      rounds_->Resend(tensor, partition);
    }
  }
  AckChange();
}

// A next owner that was lost does not count: the scheduler knows, or is being told.
bool PlanFollower::ConnectedToNextOwners() const {
  for (const auto& [id, tensor] : tensors_->by_id()) {
    for (const PartitionOwner& owner : tensor->owners) {
      if (owner.next != nullptr && !owner.next->open() && !owner.next->given_up()) return false;
    }
  }
  return true;
}

void PlanFollower::AckChange() {
  if (change_.number == 0 || state_->failed()) return;
  const Generation generation = context_.identity->generation;
  if (!change_.connected_told) {
    if (!ConnectedToNextOwners()) return;
    change_.connected_told = true;
    context_.reports->Send(report::ChangeDone(generation, change_.number, /*following=*/false));
  }
  if (change_.following_told || change_.moves > 0) return;
  change_.following_told = true;
  context_.reports->Send(report::ChangeDone(generation, change_.number, /*following=*/true));
}

}  // namespace addend
