// A partition of a tensor on its owner: the accumulators of two rounds, the contributions, and the
// arithmetic. Two rounds, because the result of a round is still being sent while the next round
// is summed. Belongs to a shard's thread. Knows no link.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "lib/base/bytes.h"
#include "lib/base/ids.h"
#include "lib/base/shared_text.h"
#include "lib/base/types.h"
#include "lib/summation/collector.h"
#include "lib/summation/ownership.h"
#include "lib/summation/round_sum.h"
#include "lib/summation/shard_journal.h"
#include "lib/summation/table_bytes.h"
#include "lib/transport/transport.h"

namespace addend {

// Where a partition sums and leaves its results, by parity of the round. `accumulator` has
// AccumulatorSizeOf(dtype) bytes an element, `result` SizeOf(dtype); both may be the same memory.
struct PartitionMemory {
  std::byte* accumulator[2] = {nullptr, nullptr};
  std::byte* result[2] = {nullptr, nullptr};
  std::atomic<uint64_t>* reads = nullptr;  // of results in the agent's memory: see ExternalSlots
  std::shared_ptr<void> keep_alive;
};

class Partition : public std::enable_shared_from_this<Partition> {
 public:
  struct Spec {
    PartitionId id;
    SharedText name;  // of the tensor, which all its partitions share
    DType dtype = DType::kFloat32;
    ReduceOp op = ReduceOp::kSum;
    uint64_t elements = 0;
    uint32_t nodes = 1;
    uint32_t ranks = 1;        // of a node: Average divides by those that take part
    std::set<NodeId> lost;     // nodes that take part in no round
    bool aborted = false;      // as Abort()
    PlanVersion version;       // 0: the owner from the first round on
    bool handed_over = false;  // by the former owner: the first contribution names the round
  };
  Partition(Spec spec, PartitionMemory memory);

  const Spec& spec() const { return spec_; }
  size_t payload_bytes() const { return spec_.elements * SizeOf(spec_.dtype); }
  Collector& collector() { return collector_; }
  const Collector& collector() const { return collector_; }
  const Ownership& ownership() const { return ownership_; }

  // A contribution to the open round has arrived.
  bool IsOpen() const { return collector_.IsOpen(); }

  // ---- handing over to another owner ----
  bool HandOver(PlanVersion next) { return ownership_.HandOver(next); }
  // `receiving`: a contribution is being received. True: the partition is closed now, and the nodes
  // have to be told.
  bool CloseIfDue(bool receiving) {
    return ownership_.CloseIfDue(!receiving && (aborted_ || !IsOpen()));
  }

  // ---- taking over from another owner ----
  // Forgets the open round, and waits for the nodes' reports unless the former owner `handed_over`.
  // No effect if the version is old.
  void TakeOver(PlanVersion version, bool handed_over);
  // A contribution of this round has arrived. After a hand-over the first contribution says where
  // the partition stands: a node follows the new owner only when it has all results of the former
  // owner.
  void Meet(Round round);
  // True for the report that completes them: contributions of the rounds after newest() may come.
  bool OnReport(NodeId node, Round held);
  // The memory for a node's copy of the newest result; empty unless a node lacks that result.
  MutableBytes RoomForNewest();
  // The copy has arrived.
  void TakeNewest(Bytes result);
  // The newest result is on its way to all nodes that lacked it.
  void Supplied() { ownership_.Supplied(); }

  // ---- a node is lost ----
  // The effects of a loss: the remaining reports are complete (`reports_complete`), or the open
  // round is complete without the node (`sealed`). FAILED_PRECONDITION: the round is a broadcast
  // whose root was this node. It stays open, and no node can complete it.
  struct Loss {
    bool reports_complete = false;
    Round sealed;  // 0: no round
    absl::Status status;
  };
  Loss Lose(NodeId node);
  // The open round is a broadcast, and no remaining node has the data.
  bool RootIsLost() const {
    return spec_.op == ReduceOp::kBroadcast && !has_data_ &&
           collector_.contributors() < spec_.nodes;
  }
  // From now on no round is summed or sealed: the generation has failed, or the root is lost.
  void Abort() { aborted_ = true; }
  bool aborted() const { return aborted_; }
  // Opens the newest round again, whose result is lost with its holder. Its contributions have to
  // be requested.
  void GoBack();

  // The accumulator itself, if the contribution of the node whose turn it is can be received there:
  // it is the first, and needs no conversion. Else empty.
  MutableBytes DirectRoom();
  // Takes the contribution of the node whose turn it is; it may lie in DirectRoom(). `empty`: it
  // adds nothing. Settle() follows. FAILED_PRECONDITION: two nodes sent data for a broadcast, or no
  // node did.
  absl::Status Take(Payload payload, bool empty);
  // The same for the kept contribution of the node whose turn it is. Returns its bytes.
  absl::StatusOr<size_t> TakeKept();
  // Sums the contributions that were taken, as far as necessary: afterwards only payloads that are
  // passed by reference are still in use. Seals the round when all nodes are in it: `*sealed` is
  // then the round.
  void Settle(Round* sealed);
  // The result of the round before the open round. Only if Holds() that round.
  Bytes LastResult() const;
  // The last result has been sent.
  void NoteSent() const {
    if (memory_.reads != nullptr) memory_.reads->fetch_add(1, std::memory_order_release);
  }
  bool Holds(Round round) const { return holds_last_ && Next(round) == collector_.round(); }
  // An element of LastResult() is infinite or NaN. Broadcasts, and results that a node supplied,
  // are not checked.
  bool nonfinite() const { return nonfinite_; }
  // The number of nodes in LastResult(); 0: a node supplied it.
  uint32_t contributors() const { return contributors_; }
  // The round before the open round; 0 before the first.
  Round LastRound() const { return Round(collector_.round().value() - 1); }
  int32_t priority() const { return priority_; }

  void KeepEarly(NodeId node, std::unique_ptr<EarlyContribution> early);
  // Returns the memory of early contributions to the budget; the contributions will be requested
  // again. Returns their number.
  size_t DropEarly();
  // Drops the references to the memory of `node`'s process.
  void ForgetReferences(NodeId node);
  // The times of the open round, for the trace.
  Gathering& gathering() { return gathering_; }
  // A frame about the open round has arrived.
  void Touch(absl::Time now, int32_t priority);
  absl::Time open_since() const { return open_since_; }
  uint64_t copied_bytes() const { return copied_bytes_; }

 private:
  absl::Status CheckBroadcast() const;
  void Seal(Round* sealed);
  void ForgetOpenRound();
  uint64_t divisor() const { return uint64_t{spec_.ranks} * collector_.contributors(); }
  absl::Status TakeBroadcast(Bytes data, bool empty);
  absl::Status Take(Bytes data, bool empty, std::unique_ptr<EarlyContribution> owner);
  // The next round is `next`, or the later round that this server has reached itself.
  void GoOnWith(Round next);
  void GoOnWithNewest();
  RoundSum::Memory Slot() const {
    return {memory_.accumulator[parity()], memory_.result[parity()]};
  }
  bool widened() const { return SizeOf(spec_.dtype) != AccumulatorSizeOf(spec_.dtype); }
  uint32_t parity() const { return Parity(collector_.round()); }

  const Spec spec_;
  const PartitionMemory memory_;
  Collector collector_;
  Ownership ownership_;
  bool aborted_;
  bool fresh_;               // handed over, and no contribution has arrived yet
  bool holds_last_ = false;  // LastResult() is there
  uint32_t contributors_ = 0;
  bool nonfinite_ = false;
  bool has_data_ = false;  // a contribution of this round was not empty
  RoundSum sum_;
  Gathering gathering_;
  int32_t priority_ = 0;
  absl::Time open_since_ = absl::InfiniteFuture();
  std::vector<std::unique_ptr<EarlyContribution>> early_;  // by node
  uint64_t copied_bytes_ = 0;
};

}  // namespace addend
