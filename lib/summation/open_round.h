// The open round of a partition on its owner: the contributions that have arrived, their order, and
// their sum or broadcast. Belongs to a shard's thread. Knows no link, no other owner and no former
// result.
//
// A contribution is taken at its node's turn. An early contribution is kept, or dropped and
// requested again at its turn. When all nodes are in the round, Settle() seals it and opens the
// next round, whose sum lies in the other half of the memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "lib/base/bytes.h"
#include "lib/base/ids.h"
#include "lib/base/sum_tree.h"
#include "lib/summation/collector.h"
#include "lib/summation/early_buffers.h"
#include "lib/summation/kept_contributions.h"
#include "lib/summation/partition_spec.h"
#include "lib/summation/round_sum.h"
#include "lib/summation/shard_journal.h"
#include "lib/transport/transport.h"

namespace addend {

class OpenRound {
 public:
  // A sealed round, whose result is complete.
  struct Outcome {
    uint32_t contributors = 0;  // the nodes in the result
    uint32_t with_data = 0;     // of them: those that did not contribute nothing
    bool nonfinite = false;     // an element is infinite or NaN; broadcasts are not checked
  };

  // Opens round 1, in which the lost nodes of `spec` take no part. Both outlive this object.
  OpenRound(const PartitionSpec* spec, const PartitionMemory* memory);

  // The number of the round, and the order of the nodes.
  const Collector& collector() const { return collector_; }

  // ---- contributions ----
  // The next step for the node whose turn it is: see Collector::Advance().
  Collector::Next Advance() { return collector_.Advance(); }
  // The accumulator itself, if a contribution of the node whose turn it is can be received there:
  // it is the first, raw, and needs no conversion. Else empty.
  MutableBytes DirectRoomFor(Encoding encoding) const;
  // Takes the contribution of the node whose turn it is, which is well-formed; raw, it may lie in
  // DirectRoomFor(). `empty`: it adds nothing. Settle() follows. FAILED_PRECONDITION: two nodes
  // sent data for a broadcast, or no node did.
  absl::Status Take(Payload payload, Encoding encoding, bool empty);
  // The same for the kept contribution of the node whose turn it is.
  absl::Status TakeKept();
  // Keeps the early contribution of `node`.
  void Keep(NodeId node, std::unique_ptr<EarlyContribution> early);
  // The same for a frame that has just arrived, in its buffer `early` if it has one. Without a
  // buffer the contribution is dropped, and requested again at the node's turn. The sum of a whole
  // group of eight takes the place of its contributions, in a buffer for `job`.
  void KeepOrDrop(const FrameHeader& header, Payload payload,
                  std::unique_ptr<EarlyContribution> early, EarlyBuffers* buffers,
                  const std::shared_ptr<JobMemory>& job);
  // The sum of the contributions of a span of nodes, which a relay has sent in their place:
  // `contributions` of them had data. It is the turn of the span's first node. The tree has the
  // span's sum (sum_tree.h), all nodes have participants, and the span's have not contributed.
  void TakeSum(const SumSpan& span, Bytes sum, uint32_t contributions);
  // Keeps such a sum, in its buffer, until the turn of its first node. Without a buffer it is
  // dropped, and requested again then, unless it has no contributions.
  void KeepSum(const SumSpan& span, uint32_t contributions,
               std::unique_ptr<EarlyContribution> early);
  // The contributions with data in the kept contribution of the node whose turn it is.
  uint32_t TurnContributions() const { return kept_.Of(collector_.turn())->contributions(); }
  // The contribution of `node` has arrived, and is not kept.
  void Drop(NodeId node) { collector_.Drop(node); }
  // Returns the memory of kept contributions to the budget, except for those of lost nodes, which
  // could not send them again. Returns the number dropped.
  size_t DropKept();
  // Drops the references to the memory of `node`'s process. Summed contributions stay.
  void ForgetReferences(NodeId node);
  // Sums the contributions that were taken, as far as necessary: afterwards only payloads that are
  // passed by reference are still in use. If all nodes are in the round, seals it and opens the
  // next round; else nullopt.
  std::optional<Outcome> Settle();
  // The same for a sum that is passed on as it is: elements of the accumulator's type, in the
  // accumulator of the sealed round. Not for a broadcast.
  std::optional<Outcome> SettleSum();
  // A contribution of the open round was not empty.
  bool has_data() const { return with_data_ > 0; }

  // ---- a broadcast ----
  // FAILED_PRECONDITION: the round is a broadcast, and no node has sent data.
  absl::Status CheckRoot() const;
  // The round is a broadcast, and no remaining node has the data.
  bool RootIsLost() const;

  // ---- changes of the nodes and of the owner ----
  // The node contributes no more; its contribution stays in the round. True: the open round is
  // complete without the node.
  bool Lose(NodeId node);
  // Forgets all contributions. The next round is `next`, or the later round that is open here.
  void Restart(Round next);
  // Forgets all contributions, and opens the former round again.
  void GoBack();

  // ---- times and numbers ----
  // The round waits for nodes: a frame about the round has arrived, or reports are missing.
  void Touch(absl::Time now, int32_t priority);
  // The time of the first Touch(); InfiniteFuture() before.
  absl::Time open_since() const { return open_since_; }
  // Of the round's first frame; until that frame has arrived, of the former round.
  int32_t priority() const { return priority_; }
  // The times of the contributions, for the trace. The caller clears them when the round is sealed.
  Gathering& gathering() { return gathering_; }
  // The bytes that were only copied, in all rounds.
  uint64_t copied_bytes() const { return copied_bytes_; }

 private:
  bool is_broadcast() const { return spec_->op == ReduceOp::kBroadcast; }
  RoundSum::Memory Slot() const {
    const uint32_t parity = Parity(collector_.round());
    return {memory_->accumulator[parity], memory_->result[parity], memory_->partial};
  }
  absl::Status Take(const EncodedBytes& data, bool empty, std::unique_ptr<EarlyContribution> owner);
  absl::Status TakeBroadcast(const EncodedBytes& data, bool empty);
  void TakeSpan(const SumSpan& span, Bytes sum, uint32_t contributions);
  void RoundResult();
  void Seal();
  void Forget();
  // The ranks of the nodes that take part in this round.
  uint64_t Ranks() const;

  const PartitionSpec* const spec_;
  const PartitionMemory* const memory_;
  Collector collector_;
  uint32_t with_data_ = 0;  // the contributions that were not empty
  uint32_t nodes_ = 0;      // that have participants, lost nodes included
  RoundSum sum_;
  KeptContributions kept_;
  Gathering gathering_;
  int32_t priority_ = 0;
  absl::Time open_since_ = absl::InfiniteFuture();
  uint64_t copied_bytes_ = 0;
};

}  // namespace addend
