// A partition that another server owns, and for which this server sums the contributions of a span
// of nodes. The span's sum goes to the owner, or to the relay of the next span, as if it came from
// a single node; the result comes back from there, and is passed on to the span's nodes.
//
// A relay decides nothing: no round is sealed, handed over or given up here, and nobody asks it how
// a round has ended. When anything goes wrong on the way, the owner recovers the partition under a
// new plan version, in which the nodes contribute to it themselves.
//
// Belongs to a shard's thread. Knows no link.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "lib/base/bytes.h"
#include "lib/base/ids.h"
#include "lib/encoding/encoded_bytes.h"
#include "lib/summation/open_round.h"
#include "lib/summation/partition_spec.h"
#include "lib/summation/specs.h"

namespace addend {

class RelayedPartition {
 public:
  // `spec`: of the whole partition, without lost nodes. `memory`: for as many nodes as the span
  // has. INVALID_ARGUMENT from CheckOrder() must not be used here.
  RelayedPartition(PartitionSpec spec, const RelayOrder& order, PartitionMemory memory);
  RelayedPartition(const RelayedPartition&) = delete;
  RelayedPartition& operator=(const RelayedPartition&) = delete;

  const PartitionSpec& spec() const { return spec_; }
  const RelayOrder& order() const { return order_; }
  // The span's nodes are numbered from 0 in it. Its newest round has no result here while it is
  // summed, and while AwaitsResult().
  OpenRound& open_round() { return open_round_; }
  const OpenRound& open_round() const { return open_round_; }
  NodeId Local(NodeId node) const { return NodeId(node.value() - order_.span.first); }
  // The node sends its contributions here; or the relay sends the sum of the nodes before them.
  bool Expects(NodeId sender) const;
  // The part of the span that comes as a sum, numbered from 0. No nodes: all contribute.
  SumSpan Before() const { return {.first = 0, .count = order_.first_node - order_.span.first}; }

  // Sums the contributions as far as necessary. True: all have come, and the sum is to be sent.
  bool Settle();
  // The sum of the round that awaits its result, elements of the accumulator's type; empty: no
  // contribution had data. Lent until the result has come.
  Bytes Sum() const;
  uint32_t with_data() const { return with_data_; }
  // Of the contributions, and so of the sum.
  int32_t priority() const { return priority_; }

  // The round whose sum was made last; 0: not any.
  Round Summed() const { return Round(open_round_.collector().round().value() - 1); }
  bool AwaitsResult() const { return Summed() != held_; }
  // The newest round whose result is here.
  Round held() const { return held_; }
  // The memory for a result; empty unless it is awaited.
  MutableBytes RoomFor(Round round);
  // The result of Summed(). Raw, it may lie in RoomFor().
  void TakeResult(const FrameHeader& header, const EncodedBytes& result);
  // The header fields of the result that is held, as the owner has set them.
  const FrameHeader& result_header() const { return result_header_; }
  Bytes Result() const;

  // The owner's word that ends this server's part: MOVED, or ABORTED for the round that it names.
  void End(const FrameHeader& word) { end_ = word; }
  const std::optional<FrameHeader>& end() const { return end_; }

 private:
  static PartitionSpec LocalSpec(const PartitionSpec& spec, const RelayOrder& order);

  const PartitionSpec spec_;
  const RelayOrder order_;
  const PartitionSpec local_;
  const PartitionMemory memory_;
  OpenRound open_round_;
  uint32_t with_data_ = 0;
  int32_t priority_ = 0;
  Round held_;
  FrameHeader result_header_;
  std::optional<FrameHeader> end_;
};

}  // namespace addend
