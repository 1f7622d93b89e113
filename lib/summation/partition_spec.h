// A partition as its owner is told of it, and its memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "lib/base/ids.h"
#include "lib/base/participants.h"
#include "lib/base/shared_text.h"
#include "lib/base/types.h"
#include "lib/base/wire_format.h"
#include "lib/summation/relayed_span.h"

namespace addend {

struct PartitionSpec {
  PartitionId id = {};
  SharedText name = {};  // of the tensor, which all its partitions share
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  WireFormat wire = {};        // to which the owner rounds a result
  uint64_t first_element = 0;  // in the tensor
  uint64_t elements = 0;
  uint32_t nodes = 1;
  uint32_t ranks = 1;          // of a node
  std::set<NodeId> lost = {};  // nodes that take part in no round
  // The ranks that take part in the tensor, of which Average counts those of the round's nodes.
  // Other nodes take part in no round.
  std::shared_ptr<const Participants> participants = nullptr;  // null: all
  bool aborted = false;      // no round is summed or sealed: the generation has failed
  PlanVersion version = {};  // 0: the owner from the first round on
  bool handed_over = false;  // by the former owner: the first contribution names the round

  // In ascending order. Under the first owner only.
  std::shared_ptr<const std::vector<RelayedSpan>> relayed = nullptr;  // null: all come directly

  bool HasNode(NodeId node) const {
    return participants == nullptr || participants->HasNode(node, ranks);
  }
  uint32_t RanksOf(NodeId node) const {
    return participants == nullptr ? ranks : participants->RanksOf(node, ranks);
  }
  bool TakesPart(NodeId node) const { return HasNode(node) && !lost.contains(node); }
  size_t payload_bytes() const { return elements * SizeOf(dtype); }
};

// Where a partition sums and leaves its results, by parity of the round. `accumulator` has
// AccumulatorSizeOf(dtype) bytes an element, `result` SizeOf(dtype); both may be the same memory.
// `partial`: as of RoundSum::Memory.
struct PartitionMemory {
  std::byte* accumulator[2] = {nullptr, nullptr};
  std::byte* result[2] = {nullptr, nullptr};
  std::byte* partial = nullptr;
  std::atomic<uint64_t>* reads = nullptr;  // of results in the agent's memory: see ExternalSlots
  std::shared_ptr<void> keep_alive;
};

}  // namespace addend
