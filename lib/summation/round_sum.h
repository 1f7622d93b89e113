// The sum of a partition's open round: the contributions whose turn has come, in their order. They
// are summed together, as late as their memory allows, since every pass reads and writes the
// accumulator once more. Belongs to a shard's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/ids.h"
#include "lib/base/types.h"
#include "lib/encoding/encoded_bytes.h"
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

  // Adds the next contribution, of `node`, in the memory of `owner`. Without an owner the data is
  // lent until Condense() or Finish(), and may be the accumulator itself if it is the first and
  // elements need no widening.
  void Add(NodeId node, const EncodedBytes& data, std::unique_ptr<EarlyContribution> owner,
           const Memory& memory);
  // Sums all contributions into the accumulator, and releases their memory. Returns the bytes that
  // were only copied for that.
  size_t Condense(const Memory& memory);
  // The same, unless all contributions are references to the senders' memory: those can wait.
  size_t LetGoOfBuffers(const Memory& memory);
  bool RefersTo(NodeId node) const;
  // result = finish(sum), or 0 without contributions. Afterwards the sum is empty.
  void Finish(const Memory& memory, uint64_t divisor);
  void Clear();

 private:
  struct Term {
    EncodedBytes data;
    NodeId node;
    std::unique_ptr<EarlyContribution> owner;  // null if the data is lent
  };
  std::vector<EncodedBytes> Payloads() const;
  // Adds all terms to the accumulator.
  void AddTerms(const Memory& memory) const;

  const DType dtype_;
  const ReduceOp op_;
  const uint64_t elements_;
  bool started_ = false;  // the accumulator has the sum of the contributions before the terms
  std::vector<Term> terms_;
};

}  // namespace addend
