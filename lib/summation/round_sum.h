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
#include "lib/transport/transport.h"

namespace addend {

// A contribution that came before its turn: a buffer taken from the budget, or a reference to the
// sender's memory.
class EarlyContribution {
 public:
  // Null when the budget has no room.
  static std::unique_ptr<EarlyContribution> TakeBuffer(EarlyBuffers* buffers, size_t bytes);
  EarlyContribution(Payload payload, bool empty) : payload_(std::move(payload)), empty_(empty) {}

  MutableBytes room() const { return buffer_.memory(); }
  Bytes bytes() const { return room().empty() ? payload_.bytes() : Bytes(room()); }
  bool empty() const { return empty_; }
  bool by_reference() const { return payload_.by_reference(); }

 private:
  explicit EarlyContribution(EarlyBuffers::Buffer buffer) : buffer_(std::move(buffer)) {}

  EarlyBuffers::Buffer buffer_;
  Payload payload_;
  bool empty_ = false;
};

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

  bool empty() const { return !started_ && terms_.empty(); }
  // The next one, whose memory is lent until Condense() or Finish(). It may be the accumulator
  // itself if nothing came before, and elements need no widening.
  void Add(Bytes data, const Memory& memory);
  // The next one, with its memory.
  void Add(NodeId node, std::unique_ptr<EarlyContribution> contribution);
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
