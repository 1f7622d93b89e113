// Watches for rounds that stay open: warns, and fails the generation after --stall-timeout. Belongs
// to the agent's core thread.
#pragma once

#include <string>

#include "services/worker_agent/contribution_source.h"
#include "services/worker_agent/generation_state.h"
#include "services/worker_agent/local_ranks.h"
#include "services/worker_agent/node_context.h"
#include "services/worker_agent/tensor_table.h"

namespace addend {

class StallWatch {
 public:
  // All pointers outlive this.
  StallWatch(const NodeContext& context, const LocalRanks* ranks, const TensorTable* tensors,
             GenerationState* state)
      : context_(context), ranks_(ranks), tensors_(tensors), state_(state) {}

  // Once a second. `source`: of the contributions.
  void Check(const ContributionSource& source);

 private:
  std::string Describe(const NodeTensor& tensor, const ContributionSource& source) const;

  const NodeContext context_;
  const LocalRanks* const ranks_;
  const TensorTable* const tensors_;
  GenerationState* const state_;
};

}  // namespace addend
