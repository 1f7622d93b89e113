// Early contributions, and the sums of whole groups of them.
#include "lib/summation/kept_contributions.h"

#include <algorithm>
#include <utility>

#include "lib/base/sum_tree.h"
#include "lib/encoding/encoded_bytes.h"
#include "lib/reduce/reduce.h"

namespace addend {

KeptContributions::KeptContributions(const PartitionSpec* spec) : spec_(spec), kept_(spec->nodes) {
  if (spec->participants == nullptr) return;
  uint32_t next = 0;
  for (uint32_t node = 0; node < spec->nodes; ++node) {
    positions_.push_back(next);
    if (spec->HasNode(NodeId(node))) ++next;
  }
}

void KeptContributions::Clear() {
  for (auto& kept : kept_) kept.reset();
}

std::vector<NodeId> KeptContributions::GroupOf(NodeId node) const {
  const uint32_t group = PositionOf(node) / kSumRadix;
  std::vector<NodeId> nodes;
  // No position is above its node's number.
  for (uint32_t other = group * kSumRadix; other < spec_->nodes; ++other) {
    const uint32_t of_other = PositionOf(NodeId(other)) / kSumRadix;
    if (of_other > group) break;
    if (of_other == group && spec_->HasNode(NodeId(other))) nodes.emplace_back(other);
  }
  return nodes;
}

bool KeptContributions::IsWorthSumming(const std::vector<NodeId>& group,
                                       const Collector& collector) const {
  size_t bytes = 0;
  for (const NodeId member : group) {
    if (!collector.TakesPart(member)) continue;
    const EarlyContribution* const kept = Of(member);
    if (kept == nullptr || kept->by_reference() || kept->is_group()) return false;
    bytes += kept->room().size();
  }
  return bytes > sum_bytes();
}

void KeptContributions::SumGroup(NodeId node, const Collector& collector, EarlyBuffers* buffers,
                                 const std::shared_ptr<JobMemory>& job) {
  if (spec_->op == ReduceOp::kBroadcast || SumLevels(spec_->nodes) == 1) return;
  const std::vector<NodeId> group = GroupOf(node);
  if (!IsWorthSumming(group, collector)) return;
  auto sum = EarlyContribution::TakeBuffer(buffers, sum_bytes(), job);
  if (sum == nullptr) return;
  std::vector<EncodedBytes> terms;
  NodeId holder;  // the first with data
  for (const NodeId member : group) {
    if (Of(member) == nullptr || Of(member)->empty()) continue;
    if (terms.empty()) holder = member;
    terms.push_back(Of(member)->content());
  }
  const size_t size = AccumulatorSizeOf(spec_->dtype);
  ForEachTile(terms, spec_->dtype, spec_->elements, [&](size_t first, size_t count, auto inputs) {
    Start(spec_->dtype, spec_->op, sum->room().data() + first * size, inputs, count);
  });
  sum->BecomeSumOf(static_cast<uint32_t>(terms.size()));
  for (const NodeId member : group) {
    if (Of(member) != nullptr) {
      Keep(member, std::make_unique<EarlyContribution>(Payload(), /*empty=*/true));
    }
  }
  Keep(holder, std::move(sum));
}

// The nodes whose contributions the kept contribution of this node has.
std::vector<NodeId> KeptContributions::SummedWith(NodeId node) const {
  if (const std::optional<SumSpan>& span = Of(node)->span(); span.has_value()) {
    std::vector<NodeId> nodes;
    for (uint32_t i = span->first; i < span->end(); ++i) nodes.emplace_back(i);
    return nodes;
  }
  return Of(node)->is_group() ? GroupOf(node) : std::vector<NodeId>{node};
}

std::vector<NodeId> KeptContributions::DropBuffers(const Collector& collector) {
  std::vector<NodeId> dropped;
  for (uint32_t node = 0; node < kept_.size(); ++node) {
    const NodeId id(node);
    if (Of(id) == nullptr || Of(id)->room().empty()) continue;
    const std::vector<NodeId> together = SummedWith(id);
    // A lost node could not send its contribution again.
    const bool needed = std::any_of(together.begin(), together.end(), [&](NodeId member) {
      return Of(member) != nullptr && collector.IsLost(member);
    });
    if (needed) continue;
    for (const NodeId member : together) {
      if (Take(member) != nullptr) dropped.push_back(member);
    }
  }
  return dropped;
}

}  // namespace addend
