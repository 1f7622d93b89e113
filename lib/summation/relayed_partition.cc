// From the contributions of a span to its sum, and from the result to its nodes.
#include "lib/summation/relayed_partition.h"

#include <utility>

#include "lib/encoding/encoded_bytes.h"

namespace addend {

RelayedPartition::RelayedPartition(PartitionSpec spec, const RelayOrder& order,
                                   PartitionMemory memory)
    : spec_(std::move(spec)),
      order_(order),
      local_(LocalSpec(spec_, order_)),
      memory_(std::move(memory)),
      open_round_(&local_, &memory_) {}

PartitionSpec RelayedPartition::LocalSpec(const PartitionSpec& spec, const RelayOrder& order) {
  PartitionSpec local = spec;
  local.nodes = order.span.count;
  local.lost.clear();
  local.participants = nullptr;
  local.relayed = nullptr;
  return local;
}

bool RelayedPartition::Expects(NodeId sender) const {
  if (IsRelay(sender)) return order_.before != ServerId() && ServerOf(sender) == order_.before;
  return sender.value() >= order_.first_node && sender.value() < order_.span.end();
}

bool RelayedPartition::Settle() {
  const int32_t priority = open_round_.priority();
  const auto outcome = open_round_.SettleSum();
  if (!outcome.has_value()) return false;
  with_data_ = outcome->with_data;
  priority_ = priority;
  return true;
}

Bytes RelayedPartition::Sum() const {
  if (with_data_ == 0) return {};
  return Bytes(memory_.accumulator[Parity(Summed())],
               spec_.elements * AccumulatorSizeOf(spec_.dtype));
}

MutableBytes RelayedPartition::RoomFor(Round round) {
  if (!AwaitsResult() || round != Summed()) return {};
  return MutableBytes(memory_.result[Parity(round)], spec_.payload_bytes());
}

void RelayedPartition::TakeResult(const FrameHeader& header, const EncodedBytes& result) {
  const MutableBytes room = RoomFor(header.round);
  if (!result.raw() || result.bytes.data() != room.data()) {
    Decode(result, spec_.dtype, spec_.elements, room.data());
  }
  held_ = header.round;
  result_header_ = header;
}

Bytes RelayedPartition::Result() const {
  return Bytes(memory_.result[Parity(held_)], spec_.payload_bytes());
}

}  // namespace addend
