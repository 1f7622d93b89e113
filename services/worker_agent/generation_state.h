// The failure of a generation: a node was lost, a rank stalled, declarations differ. The node of
// spec/node_loss.pml. Belongs to the agent's core thread.
//
// Every rank shall see the error in the same round of a tensor, and the owners decide on the round:
// while the generation fails, no round starts, and each started round ends or is aborted by the
// owners. The node tells the scheduler when that is so. The trainers are told once it is so on all
// nodes, or a lease later: trainers that are told may end, and their node with them, which may be
// the only node with a result that another node still waits for.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "services/worker_agent/local_ranks.h"
#include "services/worker_agent/node_context.h"
#include "services/worker_agent/tensor_table.h"

namespace addend {

class GenerationState {
 public:
  enum class Phase : uint8_t {
    kRunning,
    kFailing,  // no round starts any more; started rounds may still end
    kFailed    // the trainers were told, and nothing of the generation is accepted any more
  };
  class Listener {
   public:
    virtual ~Listener() = default;
    // kFailed has begun, and all ranks were told. `decided`: the owners have decided on all started
    // rounds.
    virtual void OnFailed(bool decided) = 0;
  };

  // All pointers outlive this.
  GenerationState(const NodeContext& context, const LocalRanks* ranks, const TensorTable* tensors,
                  Listener* listener)
      : context_(context),
        ranks_(ranks),
        tensors_(tensors),
        listener_(listener),
        all_decided_(context.options->num_nodes == 1) {}

  bool running() const { return phase_ == Phase::kRunning; }
  bool failed() const { return phase_ == Phase::kFailed; }
  // The generation fails, or has failed, and no round of this node can end any more.
  bool decided() const { return failed() || (!running() && !AwaitsDecision()); }
  // OK while the generation runs.
  const absl::Status& why() const { return why_; }

  // Fails the generation, unless it fails already, and reports the failure to the scheduler. The
  // trainers are told later, not within this call.
  void Fail(const absl::Status& why);
  // The same without a report: the scheduler has said so to all nodes, and its reason replaces this
  // node's.
  void FailAsTold(const absl::Status& why);
  // A round has ended, or a rank has left: tells the trainers soon if the generation fails and no
  // node awaits a decision of an owner.
  void EndIfDecided();
  // The scheduler has said that no node awaits a decision any more.
  void OnAllDecided();
  // Tells the trainers now, if the generation fails and they were not told.
  void End(bool decided);

 private:
  void Begin(const absl::Status& why, bool missed);
  bool AwaitsDecision() const;

  const NodeContext context_;
  const LocalRanks* const ranks_;
  const TensorTable* const tensors_;
  Listener* const listener_;
  Phase phase_ = Phase::kRunning;
  bool all_decided_;  // on all nodes
  bool decided_told_ = false;
  absl::Status why_;
};

}  // namespace addend
