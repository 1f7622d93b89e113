// The contributions of an open round that came before their turn, by node. When all contributions
// of a group of eight (lib/base/sum_tree.h) are kept, their sum takes the place of all of them, so
// a round of n nodes keeps about n / 8 + 7 buffers instead of n - 1. Belongs to a shard's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lib/base/ids.h"
#include "lib/summation/collector.h"
#include "lib/summation/early_buffers.h"
#include "lib/summation/partition_spec.h"

namespace addend {

class KeptContributions {
 public:
  // `spec` outlives this.
  explicit KeptContributions(const PartitionSpec* spec);

  // The position in the tree of a node that has participants: lost nodes count.
  uint32_t PositionOf(NodeId node) const {
    return positions_.empty() ? node.value() : positions_[node.value()];
  }
  // Null: it is not kept.
  const EarlyContribution* Of(NodeId node) const { return kept_[node.value()].get(); }

  void Keep(NodeId node, std::unique_ptr<EarlyContribution> early) {
    kept_[node.value()] = std::move(early);
  }
  std::unique_ptr<EarlyContribution> Take(NodeId node) { return std::move(kept_[node.value()]); }
  void Clear();
  // Sums the group of this node, whose contribution has been kept, if it is complete and the sum
  // takes less memory. Without memory for the sum all stays as it is.
  void SumGroup(NodeId node, const Collector& collector, EarlyBuffers* buffers,
                const std::shared_ptr<JobMemory>& job);
  // Gives up the buffers of all contributions that their nodes can send again. Returns those nodes.
  std::vector<NodeId> DropBuffers(const Collector& collector);

 private:
  // The nodes with participants in the group of eight to which this node belongs.
  std::vector<NodeId> GroupOf(NodeId node) const;
  std::vector<NodeId> SummedWith(NodeId node) const;
  bool IsWorthSumming(const std::vector<NodeId>& group, const Collector& collector) const;
  size_t sum_bytes() const { return spec_->elements * AccumulatorSizeOf(spec_->dtype); }

  const PartitionSpec* const spec_;
  std::vector<uint32_t> positions_;  // by node; empty: all nodes have participants
  std::vector<std::unique_ptr<EarlyContribution>> kept_;  // by node
};

}  // namespace addend
