// The agent in a planned change: the scheduler announces owners to be, this node connects to them
// and says so, follows each when its present owner hands over, and says so again. The node of
// spec/recovery.pml (PLAN, MOVED); nothing pauses.
#include "lib/base/log.h"
#include "services/worker_agent/agent.h"

namespace addend {

void Agent::NoteChange(const v1::NodeUpdate& update) {
  if (update.change() == change_.number) return;
  change_.number = update.change();
  change_.connected_said = change_.following_said = false;
}

// `plan` names all moves of the tensor that are still to come.
void Agent::TakeMoves(const std::shared_ptr<Tensor>& tensor, const v1::TensorPlan& plan) {
  for (PartitionOwner& owner : tensor->owners) SetNext(&owner, nullptr, PlanVersion());
  for (const v1::PartitionMove& move : plan.moves()) {
    if (move.partition() >= tensor->partitions()) continue;
    PartitionOwner& owner = tensor->owners[move.partition()];
    if (PlanVersion(move.version()) <= owner.version) continue;
    const auto link = LinkTo(move.server(), move.shard());
    if (!link.ok()) return FailJob(link.status(), "internal", /*report=*/true);
    SetNext(&owner, *link, PlanVersion(move.version()));
  }
}

void Agent::SetNext(PartitionOwner* owner, ServerLink* next, PlanVersion version) {
  if (owner->next != nullptr) --change_.moves;
  if (next != nullptr) ++change_.moves;
  owner->next = next;
  owner->next_version = version;
}

// FOLLOW in spec/recovery.pml.
void Agent::Follow(Tensor* tensor, uint32_t partition, ServerLink* link, PlanVersion version) {
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
  owners_changed_ = true;
}

void Agent::ForgetTensor(TensorId id) {
  const auto tensor = by_id_.find(id);
  if (tensor == by_id_.end()) return;
  for (PartitionOwner& owner : tensor->second->owners) SetNext(&owner, nullptr, PlanVersion());
  by_id_.erase(tensor);
}

// The former owner names the last round that it has sealed. One that a reset has lost is asked for
// first (M_MOVED_OVERTAKES in spec/recovery.pml).
void Agent::OnMoved(const ServerLink* link, const FrameHeader& header) {
  const std::shared_ptr<Tensor> tensor = FindOwned(link, header);
  if (tensor == nullptr) return;
  const uint32_t partition = header.partition.index();
  PartitionOwner& owner = tensor->owners[partition];
  if (header.plan_version <= owner.version) return;
  if (tensor->rounds.Held(partition) < header.round) {
    return push_->SendReport(*tensor, partition, FrameType::kAck);
  }
  // It hands over only when all nodes have been told to whom.
  if (owner.next == nullptr || owner.next_version != header.plan_version) {
    spdlog::error("{} has handed over partition {} of '{}' under plan version {}, which is unknown",
                  link->where(), partition, tensor->shape.name, header.plan_version.value());
    return;
  }
  Follow(tensor.get(), partition, owner.next, owner.next_version);
  if (tensor->asynchronous()) {  // the value goes on from the nodes' copies
    owner.reported = true;
    push_->SendReport(*tensor, partition, FrameType::kRecover);
  } else if (const Task* task = pull_->Find(header.partition))
    push_->Send(*task);
  AckChange();
}

// One that was lost does not count: the scheduler knows, or is being told.
bool Agent::ConnectedToOwnersToBe() const {
  for (const auto& [id, tensor] : by_id_) {
    for (const PartitionOwner& owner : tensor->owners) {
      if (owner.next != nullptr && !owner.next->open() && !owner.next->given_up()) return false;
    }
  }
  return true;
}

void Agent::AckChange() {
  if (change_.number == 0 || reports_ == nullptr || !failure_.ok()) return;
  if (!change_.connected_said) {
    if (!ConnectedToOwnersToBe()) return;
    change_.connected_said = true;
    reports_->AckChange(identity_.generation, change_.number, /*following=*/false);
  }
  if (change_.following_said || change_.moves > 0) return;
  change_.following_said = true;
  reports_->AckChange(identity_.generation, change_.number, /*following=*/true);
}

}  // namespace addend
