// Integrity checks of results: a few rounds of partitions are summed a second time by another
// server (lib/wire/audit.h), and values that are not finite are traced to the rank that pushed
// them. Observes the rounds and never delays them. Belongs to the agent's core thread.
#pragma once

#include <cstdint>

#include "services/worker_agent/contribution_source.h"
#include "services/worker_agent/generation_state.h"
#include "services/worker_agent/local_ranks.h"
#include "services/worker_agent/node_context.h"
#include "services/worker_agent/servers.h"

namespace addend {

class Integrity {
 public:
  // All pointers outlive this.
  Integrity(const NodeContext& context, const LocalRanks* ranks, const GenerationState* state,
            const NodeCounts* nodes, Servers* servers)
      : context_(context), ranks_(ranks), state_(state), nodes_(nodes), servers_(servers) {}

  // The contribution was pushed for the first time: an audited round's auditor gets a copy, behind
  // all other frames. `source`, of the contribution, outlives this.
  void OnPushed(const PartitionPush& push, ContributionSource* source);
  // The result is in its slot: an audited round's auditor gets its checksum.
  void OnResult(const NodeTensor& tensor, uint32_t partition, Round round);
  // The result is not finite, and the contribution is in host memory: looks for such values in the
  // ranks' contributions, which stay as they were until the result is delivered.
  void OnNonFinite(const NodeTensor& tensor, uint32_t partition, const ContributionSource& source);

 private:
  // The link to the server that sums the partition's round a second time; null: no audit.
  ServerLink* AuditorOf(const NodeTensor& tensor, uint32_t partition, Round round);

  const NodeContext context_;
  const LocalRanks* const ranks_;
  const GenerationState* const state_;
  const NodeCounts* const nodes_;
  Servers* const servers_;
  bool nonfinite_told_ = false;
  bool nonfinite_of_others_ =
      false;  // a result was not finite, though this node's contributions were
};

}  // namespace addend
