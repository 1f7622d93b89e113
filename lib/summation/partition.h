// A partition of a tensor on its owner: the open round, the result of the round before, and the
// owner's part in the recovery protocol. The result of a round is still being sent while the next
// round is summed, in other memory. Belongs to a shard's thread. Knows no link.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "lib/base/bytes.h"
#include "lib/base/ids.h"
#include "lib/encoding/payload_encoder.h"
#include "lib/summation/collector.h"
#include "lib/summation/open_round.h"
#include "lib/summation/ownership.h"
#include "lib/summation/partition_spec.h"

namespace addend {

class Partition : public std::enable_shared_from_this<Partition> {
 public:
  Partition(PartitionSpec spec, PartitionMemory memory);
  Partition(const Partition&) = delete;
  Partition& operator=(const Partition&) = delete;

  const PartitionSpec& spec() const { return spec_; }
  size_t payload_bytes() const { return spec_.payload_bytes(); }
  const Ownership& ownership() const { return ownership_; }
  // The span whose sum the relay sends; null: it does not send any, or not any more: the partition
  // has been recovered.
  const SumSpan* SpanOf(ServerId relay) const;
  // The relay that sends the node's contribution. nullopt: the node sends it itself.
  std::optional<ServerId> RelayOf(NodeId node) const;
  // For contributions. The end of the round, losses and changes of the owner concern the whole
  // partition: Settle(), Lose(), Meet(), TakeOver(), OnReport() and GoBack() here.
  OpenRound& open_round() { return open_round_; }
  const OpenRound& open_round() const { return open_round_; }
  const Collector& collector() const { return open_round_.collector(); }

  // ---- handing over to another owner ----
  bool HandOver(PlanVersion next) { return ownership_.HandOver(next); }
  // `receiving`: a contribution is being received. True: the partition is closed now, and the nodes
  // have to be told.
  bool CloseIfDue(bool receiving) {
    return ownership_.CloseIfDue(!receiving && (aborted_ || !collector().IsOpen()));
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
  void TakeNewest(const EncodedBytes& result);
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
  // From now on no round is summed or sealed: the generation has failed, or the root is lost.
  void Abort() { aborted_ = true; }
  bool aborted() const { return aborted_; }
  // Opens the newest round again, whose result is lost with its holder. Its contributions have to
  // be requested.
  void GoBack();

  // ---- results ----
  // Sums the contributions to the open round as far as necessary, and seals the round when all
  // nodes are in it: `*sealed` is then the round.
  void Settle(Round* sealed);
  // The result of the round before the open round. Only if Holds() that round.
  Bytes LastResult() const;
  // The last result as it travels, if `result` is still that of `round`: encoded once for all nodes
  // that it is sent to at about the same time. For the hand-over to a link.
  EncodedPayload EncodeResult(Round round, Bytes result, PayloadEncoder* encoder) const;
  // The last result has been sent.
  void NoteSent() const {
    if (memory_.reads != nullptr) memory_.reads->fetch_add(1, std::memory_order_release);
  }
  bool Holds(Round round) const { return holds_last_ && Next(round) == collector().round(); }
  // Of LastResult(). Without contributors if a node supplied the result.
  const OpenRound::Outcome& last_outcome() const { return last_outcome_; }
  // The round before the open round; 0 before the first.
  Round LastRound() const { return Round(collector().round().value() - 1); }

 private:
  bool is_relayed() const {
    return spec_.relayed != nullptr && ownership_.version() == spec_.version;
  }
  // The next round is `next`, or the later round that this server has reached itself.
  void GoOnWith(Round next);

  const PartitionSpec spec_;
  const PartitionMemory memory_;
  OpenRound open_round_;
  Ownership ownership_;
  bool aborted_;
  bool fresh_;               // handed over, and no contribution has arrived yet
  bool holds_last_ = false;  // LastResult() is there
  OpenRound::Outcome last_outcome_;
  // The encoding of a round's result, while a link sends it.
  struct Encoded {
    Round round;
    bool gains = false;
    EncodedBytes content;
    std::weak_ptr<const void> keep;
  };
  mutable Encoded encoded_;
  mutable PayloadEncoder::History encodings_;
};

}  // namespace addend
