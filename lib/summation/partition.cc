// The life of a round: contributions, the seal, and changes of the owner.
#include "lib/summation/partition.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"
#include "lib/reduce/finite.h"

namespace addend {

Partition::Partition(Spec spec, PartitionMemory memory)
    : spec_(std::move(spec)),
      memory_(std::move(memory)),
      collector_(spec_.nodes),
      ownership_(spec_.nodes, spec_.version, spec_.handed_over),
      aborted_(spec_.aborted),
      fresh_(spec_.handed_over),
      sum_(spec_.dtype, spec_.op, spec_.elements),
      early_(spec_.nodes) {
  for (const NodeId node : spec_.lost) {
    collector_.Lose(node);
    ownership_.Lose(node);
  }
}

MutableBytes Partition::DirectRoom() {
  if (has_data_ || (widened() && spec_.op != ReduceOp::kBroadcast)) return {};
  return MutableBytes(memory_.result[parity()], payload_bytes());
}

absl::Status Partition::Take(Payload payload, bool empty) {
  const Bytes data = payload.bytes();
  std::unique_ptr<EarlyContribution> owner;
  if (payload.by_reference()) {
    owner = std::make_unique<EarlyContribution>(std::move(payload), empty);
  }
  return Take(data, empty, std::move(owner));
}

absl::StatusOr<size_t> Partition::TakeKept() {
  auto early = std::move(early_[collector_.turn().value()]);
  const Bytes data = early->bytes();
  const bool empty = early->empty();
  ADDEND_RETURN_IF_ERROR(Take(data, empty, std::move(early)));
  return data.size();
}

absl::Status Partition::Take(Bytes data, bool empty, std::unique_ptr<EarlyContribution> owner) {
  if (spec_.op == ReduceOp::kBroadcast) {
    ADDEND_RETURN_IF_ERROR(TakeBroadcast(data, empty));
  } else if (!empty) {
    sum_.Add(collector_.turn(), data, std::move(owner), Slot());
  }
  has_data_ = has_data_ || !empty;
  collector_.Summed();
  return absl::OkStatus();
}

void Partition::Settle(Round* sealed) {
  if (!collector_.IsComplete()) {
    copied_bytes_ += sum_.LetGoOfBuffers(Slot());
    return;
  }
  nonfinite_ = false;
  if (spec_.op != ReduceOp::kBroadcast) {
    sum_.Finish(Slot(), divisor());
    // Here, while the result is in the cache.
    nonfinite_ = FirstNonFinite(spec_.dtype, memory_.result[parity()], spec_.elements).has_value();
  }
  Seal(sealed);
}

void Partition::Seal(Round* sealed) {
  *sealed = collector_.round();
  contributors_ = collector_.contributors();
  collector_.Seal();
  holds_last_ = true;
  has_data_ = false;
  open_since_ = absl::InfiniteFuture();
}

absl::Status Partition::TakeBroadcast(Bytes payload, bool empty) {
  if (empty) return collector_.IsLast() ? CheckBroadcast() : absl::OkStatus();
  if (has_data_) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "two nodes sent data for the broadcast '%s': all ranks must name the same root",
        spec_.name.str()));
  }
  std::byte* const result = memory_.result[parity()];
  if (payload.data() != result) {
    std::memcpy(result, payload.data(), payload.size());
    copied_bytes_ += payload.size();
  }
  return absl::OkStatus();
}

absl::Status Partition::CheckBroadcast() const {
  if (has_data_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrFormat("no node sent data for the broadcast '%s': its root rank is not in this job",
                      spec_.name.str()));
}

Partition::Loss Partition::Lose(NodeId node) {
  Loss loss;
  ForgetReferences(node);
  loss.reports_complete = ownership_.Lose(node);
  const bool was_complete = collector_.IsComplete();
  collector_.Lose(node);
  if (loss.reports_complete) {
    GoOnWithNewest();
  } else if (!aborted_ && !was_complete && collector_.IsComplete() && IsOpen()) {
    // All other nodes are summed: the lost node was the last.
    if (spec_.op == ReduceOp::kBroadcast) {
      loss.status = CheckBroadcast();
      if (!loss.status.ok()) return loss;
    }
    Settle(&loss.sealed);
  }
  return loss;
}

void Partition::GoBack() {
  ForgetOpenRound();
  ownership_.GoBack();
  collector_.GoBack();
  holds_last_ = false;
}

void Partition::ForgetOpenRound() {
  for (auto& early : early_) early.reset();
  sum_.Clear();
  has_data_ = false;
  gathering_ = {};
  open_since_ = absl::InfiniteFuture();
}

void Partition::TakeOver(PlanVersion version, bool handed_over) {
  if (!ownership_.TakeOver(version, handed_over)) return;
  fresh_ = handed_over;
  ForgetOpenRound();
  collector_.Restart(Round());
}

void Partition::Meet(Round round) {
  if (!fresh_) return;
  fresh_ = false;
  GoOnWith(round);
}

bool Partition::OnReport(NodeId node, Round held) {
  if (!ownership_.OnReport(node, held)) return false;
  GoOnWithNewest();
  return true;
}

void Partition::GoOnWithNewest() {
  open_since_ = absl::InfiniteFuture();
  GoOnWith(addend::Next(ownership_.newest()));
}

void Partition::GoOnWith(Round next) {
  if (next > collector_.round()) holds_last_ = false;
  collector_.Restart(next);
}

MutableBytes Partition::RoomForNewest() {
  if (!ownership_.AnyLacks()) return {};
  return MutableBytes(memory_.result[Parity(ownership_.newest())], payload_bytes());
}

void Partition::TakeNewest(Bytes result) {
  const MutableBytes room = RoomForNewest();
  if (result.data() != room.data()) {
    std::memcpy(room.data(), result.data(), result.size());
    copied_bytes_ += result.size();
  }
  holds_last_ = true;
  contributors_ = 0;
  nonfinite_ = false;
}

Bytes Partition::LastResult() const { return Bytes(memory_.result[1 - parity()], payload_bytes()); }

void Partition::KeepEarly(NodeId node, std::unique_ptr<EarlyContribution> early) {
  early_[node.value()] = std::move(early);
  collector_.Keep(node);
}

size_t Partition::DropEarly() {
  size_t dropped = 0;
  for (uint32_t node = 0; node < early_.size(); ++node) {
    if (early_[node] == nullptr || early_[node]->room().empty()) continue;
    if (collector_.IsLost(NodeId(node))) continue;  // the node could not send it again
    early_[node].reset();
    collector_.Drop(NodeId(node));
    ++dropped;
  }
  return dropped;
}

void Partition::ForgetReferences(NodeId node) {
  if (sum_.RefersTo(node)) copied_bytes_ += sum_.Condense(Slot());
  auto& early = early_[node.value()];
  if (early == nullptr || !early->by_reference()) return;
  early.reset();
  collector_.Forget(node);
}

void Partition::Touch(absl::Time now, int32_t priority) {
  if (open_since_ == absl::InfiniteFuture()) {
    open_since_ = now;
    priority_ = priority;
  }
}

}  // namespace addend
