// From the contributions of a round to its sum or broadcast.
#include "lib/summation/open_round.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"
#include "lib/reduce/finite.h"
#include "lib/reduce/rounding.h"

namespace addend {

OpenRound::OpenRound(const PartitionSpec* spec, const PartitionMemory* memory)
    : spec_(spec),
      memory_(memory),
      collector_(spec->nodes),
      sum_(spec->dtype, spec->op, spec->elements, spec->nodes),
      kept_(spec) {
  for (uint32_t node = 0; node < spec->nodes; ++node) {
    const NodeId id(node);
    if (!spec->TakesPart(id)) collector_.Lose(id);
    if (spec->HasNode(id)) ++nodes_;
  }
}

MutableBytes OpenRound::DirectRoomFor(Encoding encoding) const {
  const bool widened = SizeOf(spec_->dtype) != AccumulatorSizeOf(spec_->dtype);
  const bool direct = is_broadcast() || (!widened && SumLevels(spec_->nodes) == 1);
  if (has_data() || encoding != Encoding::kRaw || !direct) return {};
  return MutableBytes(Slot().result, spec_->payload_bytes());
}

absl::Status OpenRound::Take(Payload payload, Encoding encoding, bool empty) {
  const EncodedBytes data{payload.bytes(), encoding};
  std::unique_ptr<EarlyContribution> owner;
  if (payload.by_reference()) {
    owner = std::make_unique<EarlyContribution>(std::move(payload), empty);
  }
  return Take(data, empty, std::move(owner));
}

absl::Status OpenRound::TakeKept() {
  auto kept = kept_.Take(collector_.turn());
  if (kept->span().has_value()) {
    TakeSpan(*kept->span(), kept->bytes(), kept->contributions());
    return absl::OkStatus();
  }
  if (kept->is_group()) {
    sum_.AddGroup(kept_.PositionOf(collector_.turn()), kept->bytes(), Slot());
    with_data_ += kept->contributions();
    collector_.Summed();
    return absl::OkStatus();
  }
  const EncodedBytes data = kept->content();
  const bool empty = kept->empty();
  return Take(data, empty, std::move(kept));
}

absl::Status OpenRound::Take(const EncodedBytes& data, bool empty,
                             std::unique_ptr<EarlyContribution> owner) {
  if (is_broadcast()) {
    ADDEND_RETURN_IF_ERROR(TakeBroadcast(data, empty));
  } else if (!empty) {
    const NodeId node = collector_.turn();
    sum_.Add(kept_.PositionOf(node), node, data, std::move(owner), Slot());
  }
  if (!empty) ++with_data_;
  collector_.Summed();
  return absl::OkStatus();
}

absl::Status OpenRound::TakeBroadcast(const EncodedBytes& data, bool empty) {
  if (empty) return collector_.IsLast() ? CheckRoot() : absl::OkStatus();
  if (has_data()) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "two nodes sent data for the broadcast '%s': all ranks must name the same root",
        spec_->name.str()));
  }
  copied_bytes_ += Decode(data, spec_->dtype, spec_->elements, Slot().result);
  return absl::OkStatus();
}

absl::Status OpenRound::CheckRoot() const {
  if (!is_broadcast() || has_data()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrFormat("no node sent data for the broadcast '%s': its root rank is not in this job",
                      spec_->name.str()));
}

bool OpenRound::RootIsLost() const {
  return is_broadcast() && !has_data() && collector_.contributors() < nodes_;
}

uint64_t OpenRound::Ranks() const {
  if (spec_->participants == nullptr) return uint64_t{spec_->ranks} * collector_.contributors();
  uint64_t ranks = 0;
  for (uint32_t node = 0; node < spec_->nodes; ++node) {
    if (collector_.TakesPart(NodeId(node))) ranks += spec_->RanksOf(NodeId(node));
  }
  return ranks;
}

std::optional<OpenRound::Outcome> OpenRound::Settle() {
  if (!collector_.IsComplete()) {
    copied_bytes_ += sum_.LetGoOfBuffers(Slot());
    return std::nullopt;
  }
  Outcome outcome{.contributors = collector_.contributors(), .with_data = with_data_};
  if (!is_broadcast()) {
    sum_.Finish(Slot(), Ranks());
    RoundResult();
    // Here, while the result is in the cache.
    outcome.nonfinite = FirstNonFinite(spec_->dtype, Slot().result, spec_->elements).has_value();
  }
  Seal();
  return outcome;
}

std::optional<OpenRound::Outcome> OpenRound::SettleSum() {
  if (!collector_.IsComplete()) {
    copied_bytes_ += sum_.LetGoOfBuffers(Slot());
    return std::nullopt;
  }
  Outcome outcome{.contributors = collector_.contributors(), .with_data = with_data_};
  if (has_data()) sum_.FinishSum(Slot());
  Seal();
  return outcome;
}

void OpenRound::Seal() {
  collector_.Seal();
  with_data_ = 0;
  open_since_ = absl::InfiniteFuture();
}

// To the type in which the result travels, for the node of this server too.
void OpenRound::RoundResult() {
  if (!spec_->wire.lossy()) return;
  auto* const result = reinterpret_cast<float*>(Slot().result);
  const uint64_t key =
      RoundingKey(spec_->name.str(), collector_.round().value(), kRoundingOfResult);
  RoundToWire(spec_->wire, key, spec_->first_element, spec_->elements, result, result);
}

// The nodes behind the first of the span count as empty contributions.
void OpenRound::TakeSpan(const SumSpan& span, Bytes sum, uint32_t contributions) {
  if (contributions > 0) sum_.AddSpan(span, sum, Slot());
  with_data_ += contributions;
  collector_.Summed();
}

void OpenRound::TakeSum(const SumSpan& span, Bytes sum, uint32_t contributions) {
  TakeSpan(span, sum, contributions);
  for (uint32_t i = 1; i < span.count; ++i) collector_.Summed();
}

void OpenRound::KeepSum(const SumSpan& span, uint32_t contributions,
                        std::unique_ptr<EarlyContribution> early) {
  if (contributions > 0 && early == nullptr) return Drop(NodeId(span.first));
  if (early == nullptr) early = std::make_unique<EarlyContribution>(Payload(), /*empty=*/true);
  early->BecomeSumOf(span, contributions);
  Keep(NodeId(span.first), std::move(early));
  for (uint32_t node = span.first + 1; node < span.end(); ++node) {
    Keep(NodeId(node), std::make_unique<EarlyContribution>(Payload(), /*empty=*/true));
  }
}

void OpenRound::Keep(NodeId node, std::unique_ptr<EarlyContribution> early) {
  kept_.Keep(node, std::move(early));
  collector_.Keep(node);
}

void OpenRound::KeepOrDrop(const FrameHeader& header, Payload payload,
                           std::unique_ptr<EarlyContribution> early, EarlyBuffers* buffers,
                           const std::shared_ptr<JobMemory>& job) {
  const NodeId node(header.sender);
  const bool empty = header.flags & kFlagEmpty;
  if (early != nullptr) {
    early->SetEncoding(header.encoding);
    Keep(node, std::move(early));
  } else if (empty || payload.by_reference()) {
    Keep(node, std::make_unique<EarlyContribution>(std::move(payload), empty));
  } else {
    return Drop(node);
  }
  kept_.SumGroup(node, collector_, buffers, job);
}

size_t OpenRound::DropKept() {
  const std::vector<NodeId> dropped = kept_.DropBuffers(collector_);
  for (const NodeId node : dropped) collector_.Drop(node);
  return dropped.size();
}

void OpenRound::ForgetReferences(NodeId node) {
  if (sum_.RefersTo(node)) copied_bytes_ += sum_.Condense(Slot());
  if (kept_.Of(node) == nullptr || !kept_.Of(node)->by_reference()) return;
  kept_.Take(node);
  collector_.Forget(node);
}

bool OpenRound::Lose(NodeId node) {
  ForgetReferences(node);
  const bool was_complete = collector_.IsComplete();
  collector_.Lose(node);
  return !was_complete && collector_.IsComplete() && collector_.IsOpen();
}

void OpenRound::Restart(Round next) {
  Forget();
  collector_.Restart(next);
}

void OpenRound::GoBack() {
  Forget();
  collector_.GoBack();
}

void OpenRound::Forget() {
  kept_.Clear();
  sum_.Clear();
  with_data_ = 0;
  gathering_ = {};
  open_since_ = absl::InfiniteFuture();
}

void OpenRound::Touch(absl::Time now, int32_t priority) {
  if (open_since_ == absl::InfiniteFuture()) {
    open_since_ = now;
    priority_ = priority;
  }
}

}  // namespace addend
