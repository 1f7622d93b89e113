// Ranks that leave by shutdown() while others go on, and the end of the node's part in a
// generation. Belongs to the agent's core thread.
//
// Rounds to which a departed rank has contributed complete. A round that needs more of it never
// can, and fails at once instead of at the stall timeout. Only the rank's own agent knows its
// contributions, and decides: within the node it sees the round; the scheduler tells it the rounds
// that other nodes have waited for a moment, so that ranks which end one after the other cost
// nothing.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "services/worker_agent/generation_state.h"
#include "services/worker_agent/local_ranks.h"
#include "services/worker_agent/node_context.h"
#include "services/worker_agent/tensor_table.h"

namespace addend {

class Departures {
 public:
  // All pointers outlive this.
  Departures(const NodeContext& context, const LocalRanks* ranks, const TensorTable* tensors,
             GenerationState* state)
      : context_(context), ranks_(ranks), tensors_(tensors), state_(state) {}

  // The rank has left by shutdown().
  void OnDeparture(const Trainer& trainer);
  // Takes the departures of other nodes, and the rounds that they wait for.
  void Apply(const v1::NodeUpdate& update);
  // Fails the generation if the tensor's open round needs a rank that has left.
  void Check(const NodeTensor& tensor);
  // The scheduler hears of a round that this node waits for with the next heartbeat, which goes out
  // at once for a new round.
  void TellAwaited();
  void FillBeat(v1::HeartbeatRequest* beat) const;

  // Reports that the node is idle: all its ranks have come and left, or the generation has failed
  // and no rank is left. Where some ranks never came, `waited` is false at first: they get a
  // moment.
  void MaybeReportIdle(bool waited = false);
  bool idle_reported() const { return idle_reported_; }

 private:
  void CheckAll();
  void CheckAwaited(const v1::AwaitedRound& awaited);
  void Fail(uint32_t local_rank, const std::string& tensor, Round round);
  // The tensors whose rounds only other nodes can complete, the oldest first.
  std::vector<const NodeTensor*> LongAwaited() const;

  const NodeContext context_;
  const LocalRanks* const ranks_;
  const TensorTable* const tensors_;
  GenerationState* const state_;
  std::map<uint32_t, std::string> departed_;           // by local rank: its description
  bool anyone_departed_ = false;                       // on any node, as the scheduler says
  std::vector<v1::AwaitedRound> awaited_;              // by other nodes
  std::set<std::pair<uint32_t, Round>> told_awaited_;  // by this node: tensors' numbers
  bool idle_reported_ = false;
};

}  // namespace addend
