// The plan of a generation's tensors: their first owners, new owners after a loss, and planned
// moves of partitions to other owners. The node of spec/recovery.pml; each handler is a step of it.
// Belongs to the agent's core thread.
//
// In a planned change the scheduler announces the next owners. This node connects to them and
// acknowledges that, follows each when the present owner hands over, and acknowledges again. No
// round pauses.
#pragma once

#include <cstdint>
#include <memory>

#include "services/worker_agent/generation_state.h"
#include "services/worker_agent/node_context.h"
#include "services/worker_agent/round_runner.h"
#include "services/worker_agent/servers.h"
#include "services/worker_agent/tensor_table.h"

namespace addend {

class PlanFollower {
 public:
  using Shared = std::shared_ptr<NodeTensor>;

  // All pointers outlive this.
  PlanFollower(const NodeContext& context, TensorTable* tensors, GenerationState* state,
               Servers* servers, RoundRunner* rounds)
      : context_(context), tensors_(tensors), state_(state), servers_(servers), rounds_(rounds) {}

  // Takes the changed plans, errors and removed tensors of an update. The servers of the plan are
  // known already.
  void Apply(const v1::NodeUpdate& update);
  // No rank uses the tensor any more, and the scheduler has answered its declaration.
  void Remove(const Shared& tensor);
  // Tells the scheduler how far this node is with the planned change, if that is news.
  void AckChange();

  // ---- of the links ----
  // Both sides of a renewed link report their newest rounds.
  void OnLinkOpen(const ServerLink* link);
  // The owner has handed the partition over, and names its last sealed round.
  void OnMoved(const ServerLink* link, const FrameHeader& header);
  // The new owner of a partition knows its newest round.
  void OnRecovered(const ServerLink* link, const FrameHeader& header);

 private:
  Shared Refused(const v1::TensorError& error) const;
  void ApplyPlan(const v1::TensorPlan& plan);
  absl::StatusOr<std::vector<PartitionOwner>> FirstOwners(const v1::TensorPlan& plan);
  // The tensor has partitions with new owners: reports its newest results to them.
  void FollowPlan(const Shared& tensor, const v1::TensorPlan& plan);
  // Replaces the announced moves of the tensor by those of the plan.
  void TakeMoves(const Shared& tensor, const v1::TensorPlan& plan);
  void SetNext(PartitionOwner* owner, ServerLink* next, PlanVersion version);
  void Follow(NodeTensor* tensor, uint32_t partition, ServerLink* link, PlanVersion version);
  void Forget(TensorId id);
  bool ConnectedToNextOwners() const;

  const NodeContext context_;
  TensorTable* const tensors_;
  GenerationState* const state_;
  Servers* const servers_;
  RoundRunner* const rounds_;
  // The planned change under way; number 0: no change.
  struct {
    uint64_t number = 0;
    uint64_t moves = 0;  // partitions that have yet to move
    bool connected_told = false;
    bool following_told = false;
  } change_;
};

}  // namespace addend
