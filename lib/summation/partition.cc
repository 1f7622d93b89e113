// The open round and the last result, through changes of the owner and losses of nodes.
#include "lib/summation/partition.h"

#include <algorithm>
#include <utility>

namespace addend {

Partition::Partition(PartitionSpec spec, PartitionMemory memory)
    : spec_(std::move(spec)),
      memory_(std::move(memory)),
      open_round_(&spec_, &memory_),
      ownership_(spec_.nodes, spec_.version, spec_.handed_over),
      aborted_(spec_.aborted),
      fresh_(spec_.handed_over) {
  for (uint32_t node = 0; node < spec_.nodes; ++node) {
    if (!spec_.TakesPart(NodeId(node))) ownership_.Lose(NodeId(node));
  }
}

const SumSpan* Partition::SpanOf(ServerId relay) const {
  if (!is_relayed()) return nullptr;
  for (const RelayedSpan& relayed : *spec_.relayed) {
    if (relayed.relay == relay) return &relayed.span;
  }
  return nullptr;
}

std::optional<ServerId> Partition::RelayOf(NodeId node) const {
  if (!is_relayed()) return std::nullopt;
  for (const RelayedSpan& relayed : *spec_.relayed) {
    if (node.value() < relayed.span.first) break;
    if (node.value() < relayed.span.end()) return relayed.relay;
  }
  return std::nullopt;
}

void Partition::Settle(Round* sealed) {
  const auto outcome = open_round_.Settle();
  if (!outcome.has_value()) return;
  last_outcome_ = *outcome;
  holds_last_ = true;
  *sealed = LastRound();
}

Partition::Loss Partition::Lose(NodeId node) {
  Loss loss;
  loss.reports_complete = ownership_.Lose(node);
  const bool round_complete = open_round_.Lose(node);
  if (loss.reports_complete) {
    GoOnWith(addend::Next(ownership_.newest()));
  } else if (!aborted_ && round_complete) {
    loss.status = open_round_.CheckRoot();
    if (loss.status.ok()) Settle(&loss.sealed);
  }
  return loss;
}

void Partition::GoBack() {
  ownership_.GoBack();
  open_round_.GoBack();
  holds_last_ = false;
}

// A newest round of which only nodes have told, and whose result has not come, is not known any
// more: no node that is left may hold it.
void Partition::TakeOver(PlanVersion version, bool handed_over) {
  const bool lacks_newest = ownership_.AnyLacks() && !holds_last_;
  if (!ownership_.TakeOver(version, handed_over)) return;
  fresh_ = handed_over;
  open_round_.Restart(Round());
  if (lacks_newest) open_round_.GoBack();
}

void Partition::Meet(Round round) {
  if (!fresh_) return;
  fresh_ = false;
  GoOnWith(round);
}

bool Partition::OnReport(NodeId node, Round held) {
  if (!ownership_.OnReport(node, held)) return false;
  GoOnWith(addend::Next(ownership_.newest()));
  return true;
}

void Partition::GoOnWith(Round next) {
  if (next > collector().round()) holds_last_ = false;
  open_round_.Restart(next);
}

MutableBytes Partition::RoomForNewest() {
  if (!ownership_.AnyLacks()) return {};
  return MutableBytes(memory_.result[Parity(ownership_.newest())], payload_bytes());
}

void Partition::TakeNewest(const EncodedBytes& result) {
  Decode(result, spec_.dtype, spec_.elements, RoomForNewest().data());
  holds_last_ = true;
  last_outcome_ = {};
}

EncodedPayload Partition::EncodeResult(Round round, Bytes result, PayloadEncoder* encoder) const {
  if (encoded_.round == round) {
    if (!encoded_.gains) return {};
    if (auto keep = encoded_.keep.lock()) return {encoded_.content, std::move(keep)};
  }
  EncodedPayload encoded = encoder->Encode(
      spec_.dtype, result, &encodings_,
      {.wanted = spec_.wire.lossy(), .sends = std::max(1U, collector().contributors())});
  encoded_ = {round, !encoded.content.raw(), encoded.content, encoded.keep};
  return encoded;
}

Bytes Partition::LastResult() const {
  return Bytes(memory_.result[Parity(LastRound())], payload_bytes());
}

}  // namespace addend
