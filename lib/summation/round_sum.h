// The sum of a partition's open round: the contributions whose turn has come, added by the tree of
// sum_tree.h. They are summed together, as late as their memory allows, since every pass reads and
// writes the accumulator once more. Belongs to a shard's thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/ids.h"
#include "lib/base/sum_tree.h"
#include "lib/base/types.h"
#include "lib/encoding/encoded_bytes.h"
#include "lib/summation/early_buffers.h"

namespace addend {

class RoundSum {
 public:
  // `accumulator` has AccumulatorSizeOf(dtype) bytes an element, `result` SizeOf(dtype); they may
  // be the same memory. `partial` has as many bytes as the accumulator for each level of the tree
  // below the last; null with a single level.
  struct Memory {
    std::byte* accumulator;
    std::byte* result;
    std::byte* partial;
  };

  // Not for kBroadcast, which has no sum. `positions`: of the tree, at least 1.
  RoundSum(DType dtype, ReduceOp op, uint64_t elements, uint32_t positions)
      : dtype_(dtype),
        op_(op),
        elements_(elements),
        positions_(positions),
        levels_(SumLevels(positions)) {}

  // Adds the contribution of `node`, at a position behind all that were added before, in the memory
  // of `owner`. Without an owner the data is lent until Condense(), Finish() or a position of
  // another group of eight. With a single level it may be the accumulator itself if it is the first
  // and elements need no widening.
  void Add(uint32_t position, NodeId node, const EncodedBytes& data,
           std::unique_ptr<EarlyContribution> owner, const Memory& memory);
  // Adds the sum of a whole group of eight, elements of the accumulator's type, in place of its
  // contributions. `position`: any in the group. With two levels or more.
  void AddGroup(uint32_t position, Bytes sum, const Memory& memory);
  // Adds the sum of a span that the tree has, elements of the accumulator's type, in place of its
  // contributions. All positions of the span are behind those that were added before.
  void AddSpan(const SumSpan& span, Bytes sum, const Memory& memory);
  // Sums all contributions, and releases their memory. Returns the bytes that were only copied for
  // that.
  size_t Condense(const Memory& memory);
  // The same, unless all contributions are references to the senders' memory: those can wait.
  size_t LetGoOfBuffers(const Memory& memory);
  bool RefersTo(NodeId node) const;
  // result = finish(sum), or 0 without contributions. Afterwards the sum is empty.
  void Finish(const Memory& memory, uint64_t divisor);
  // The sum itself, elements of the accumulator's type, in memory.accumulator; there is a
  // contribution at least. Afterwards the sum is empty.
  void FinishSum(const Memory& memory);
  void Clear();

 private:
  struct Term {
    EncodedBytes data;
    NodeId node;
    std::unique_ptr<EarlyContribution> owner;  // null if the data is lent
  };
  std::vector<EncodedBytes> Payloads() const;
  std::byte* SumOf(uint32_t level, const Memory& memory) const;
  void AddTo(uint32_t level, Bytes sum, const Memory& memory);
  // Ends the groups that do not contain the leaf.
  void MoveTo(uint32_t leaf, const Memory& memory);
  // Adds the terms to the sum of level 0, and ends the open groups below `level`: their sums go
  // into its own.
  void Carry(uint32_t level, const Memory& memory);
  void CarryTile(uint32_t level, const Memory& memory, size_t first, size_t count,
                 std::span<const void* const> inputs) const;

  const DType dtype_;
  const ReduceOp op_;
  const uint64_t elements_;
  const uint32_t positions_;
  const uint32_t levels_;
  uint32_t leaf_ = 0;  // the group of eight positions to which the terms belong
  // By level: the sum of its open group has the contributions before the terms.
  std::array<bool, kSumLevelsMost> started_{};
  std::vector<Term> terms_;
};

}  // namespace addend
