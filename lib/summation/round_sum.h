// The sum of a partition's open round: the contributions whose turn has come, in their order. They
// are summed together as late as their memory allows, since every pass reads and writes the
// accumulator once more. Belongs to one shard's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/ids.h"
#include "lib/base/types.h"
#include "lib/summation/early_buffers.h"

namespace addend {

class RoundSum {
 public:
  // `accumulator` has AccumulatorSizeOf(dtype) bytes an element, `result` SizeOf(dtype); they may
  // be the same memory.
  struct Memory {
    std::byte* accumulator;
    std::byte* result;
  };

  // Not for kBroadcast, which has no sum.
  RoundSum(DType dtype, ReduceOp op, uint64_t elements)
      : dtype_(dtype), op_(op), elements_(elements) {}

  // The next one, of `node`, in the memory of `owner`. Without an owner it is lent until Condense()
  // or Finish(), and may be the accumulator itself if nothing came before and elements need no
  // widening.
  void Add(NodeId node, Bytes data, std::unique_ptr<EarlyContribution> owner, const Memory& memory);
  // Lets go of all memory but the accumulator. Returns how many bytes were copied to no purpose but
  // that.
  size_t Condense(const Memory& memory);
  // The same, but for references to the senders' memory that are not in the way.
  size_t LetGoOfBuffers(const Memory& memory);
  bool RefersTo(NodeId node) const;
  // result = finish(sum), 0 without contributions; begins anew.
  void Finish(const Memory& memory, uint32_t divisor);
  void Clear();

 private:
  struct Term {
    Bytes data;
    NodeId node;
    std::unique_ptr<EarlyContribution> owner;  // null: lent
  };
  std::vector<const void*> Pointers() const;

  const DType dtype_;
  const ReduceOp op_;
  const uint64_t elements_;
  bool started_ = false;  // the accumulator has the sum of what came before the terms
  std::vector<Term> terms_;
};

}  // namespace addend
