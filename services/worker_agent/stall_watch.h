// Watches for rounds that stay open: warns in the log and on the trainers' standard error, and
// fails the generation after --stall-timeout. Belongs to the agent's core thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

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
  // Takes the ranks that the scheduler has found missing, on any node.
  void Apply(const v1::NodeUpdate& update);

 private:
  std::string Describe(const NodeTensor& tensor, const ContributionSource& source) const;
  // ", and rank 3 waits for tensor 'b' instead (its round 1)", for each missing rank that waits.
  std::string Instead(const NodeTensor& tensor) const;
  // `tell`: the trainers too.
  void Warn(const NodeTensor& tensor, const ContributionSource& source, bool tell);

  // The ranks on other nodes that have not pushed it, as the scheduler says; "": not known.
  std::string Others(const NodeTensor& tensor) const;
  // Ranks that others wait for, and rank 0, are told too.
  void TellOthers();

  // A round that stays open somewhere, as the scheduler says.
  struct Told {
    std::string text;
    absl::Time since;
    bool concerns = false;  // ranks of this node are missing
    int warnings = 0;       // given so far
  };
  using Key = std::pair<std::string, uint64_t>;  // tensor and round

  const NodeContext context_;
  const LocalRanks* const ranks_;
  const TensorTable* const tensors_;
  GenerationState* const state_;
  std::map<Key, Told> told_;
};

}  // namespace addend
