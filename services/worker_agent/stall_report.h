// The rounds that are open on this node, as the scheduler hears of them: those that stay open, with
// each heartbeat; all of them, in answer to a question. Belongs to the agent's core thread.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "services/worker_agent/generation_state.h"
#include "services/worker_agent/local_ranks.h"
#include "services/worker_agent/node_context.h"
#include "services/worker_agent/tensor_table.h"

namespace addend {

class StallReport {
 public:
  // All pointers outlive this.
  StallReport(const NodeContext& context, const LocalRanks* ranks, const TensorTable* tensors,
              const GenerationState* state)
      : context_(context), ranks_(ranks), tensors_(tensors), state_(state) {}

  // Once a second: the scheduler hears at once of a long round, and of its end.
  void Check();
  // Takes the scheduler's question, which the next heartbeat answers at once.
  void Apply(const v1::NodeUpdate& update);
  // Lists the rounds that have been open for a second; after a question all open rounds, and the
  // tensors that it names.
  void FillBeat(v1::HeartbeatRequest* beat) const;

 private:
  using Key = std::pair<std::string, uint64_t>;  // tensor and round

  const NodeContext context_;
  const LocalRanks* const ranks_;
  const TensorTable* const tensors_;
  const GenerationState* const state_;
  std::set<Key> listed_;  // long rounds of which the scheduler has heard
  uint64_t question_ = 0;
  std::vector<std::string> asked_;
};

}  // namespace addend
