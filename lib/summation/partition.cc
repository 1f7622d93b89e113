#include "lib/summation/partition.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"
#include "lib/reduce/reduce.h"

namespace addend {

std::unique_ptr<EarlyContribution> EarlyContribution::TakeBuffer(MemoryBudget* budget,
                                                                 size_t bytes) {
  if (!budget->TryTake(bytes)) return nullptr;
  auto early = std::make_unique<EarlyContribution>();
  early->budget_ = budget;
  early->bytes_ = bytes;
  early->buffer_.reset(new std::byte[bytes]);  // not zeroed: it is about to be read into
  return early;
}

EarlyContribution::~EarlyContribution() {
  if (budget_ != nullptr) budget_->Give(bytes_);
}

Partition::Partition(Spec spec, PartitionMemory memory)
    : spec_(std::move(spec)),
      memory_(std::move(memory)),
      collector_(spec_.nodes),
      ownership_(spec_.nodes, spec_.version, spec_.handed_over),
      aborted_(spec_.aborted),
      fresh_(spec_.handed_over),
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

absl::Status Partition::Sum(Bytes data, bool empty, Payload* lent, Round* sealed) {
  if (spec_.op == ReduceOp::kBroadcast) {
    ADDEND_RETURN_IF_ERROR(SumBroadcast(data, empty));
  } else if (!empty) {
    SumData(data, lent);
  } else if (collector_.IsLast()) {
    FinishWithoutData();
  }
  has_data_ = has_data_ || !empty;
  collector_.Summed();
  if (collector_.IsComplete()) Seal(sealed);
  return absl::OkStatus();
}

void Partition::Seal(Round* sealed) {
  *sealed = collector_.round();
  contributors_ = collector_.contributors();
  collector_.Seal();
  holds_last_ = true;
  has_data_ = false;
  open_since_ = absl::InfiniteFuture();
}

const std::byte* Partition::SumSoFar() const {
  return first_.by_reference() ? first_.bytes().data() : memory_.accumulator[parity()];
}

void Partition::SumData(Bytes data, Payload* lent) {
  if (!has_data_) return SumFirst(data, lent);
  if (collector_.IsLast()) {
    AccumulateAndFinish(spec_.dtype, spec_.op, memory_.result[parity()], SumSoFar(), data.data(),
                        spec_.elements, divisor());
  } else {
    AccumulateTo(spec_.dtype, spec_.op, memory_.accumulator[parity()], SumSoFar(), data.data(),
                 spec_.elements);
  }
  first_ = Payload();
}

void Partition::SumFirst(Bytes data, Payload* lent) {
  std::byte* const accumulator = memory_.accumulator[parity()];
  const bool last = collector_.IsLast();
  if (last && !widened()) {
    Finish(spec_.dtype, spec_.op, memory_.result[parity()], data.data(), spec_.elements, divisor());
    return;
  }
  if (lent != nullptr && lent->by_reference() && !widened()) {
    first_ = std::move(*lent);
    first_node_ = collector_.turn();
    return;
  }
  if (data.data() != accumulator) {
    Start(spec_.dtype, accumulator, data.data(), spec_.elements);
    if (!widened()) copied_bytes_ += data.size();
  }
  if (last) {
    Finish(spec_.dtype, spec_.op, memory_.result[parity()], accumulator, spec_.elements, divisor());
  }
}

// The last node had nothing to add.
void Partition::FinishWithoutData() {
  std::byte* const result = memory_.result[parity()];
  if (has_data_) {
    Finish(spec_.dtype, spec_.op, result, SumSoFar(), spec_.elements, divisor());
    first_ = Payload();
  } else {
    std::memset(result, 0, payload_bytes());
  }
}

absl::Status Partition::SumBroadcast(Bytes payload, bool empty) {
  if (empty) return collector_.IsLast() ? CheckBroadcast() : absl::OkStatus();
  if (has_data_) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "two nodes sent data for the broadcast '%s': all ranks must name the same root",
        spec_.name));
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
  return absl::FailedPreconditionError(absl::StrFormat(
      "no node sent data for the broadcast '%s': its root rank is not in this job", spec_.name));
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
    // The others are summed: it was the last one.
    if (spec_.op == ReduceOp::kBroadcast) {
      loss.status = CheckBroadcast();
      if (!loss.status.ok()) return loss;
    } else {
      FinishWithoutData();
    }
    Seal(&loss.sealed);
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
  first_ = Payload();
  has_data_ = false;
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
}

Bytes Partition::LastResult() const { return Bytes(memory_.result[1 - parity()], payload_bytes()); }

void Partition::KeepEarly(NodeId node, std::unique_ptr<EarlyContribution> early) {
  early_[node.value()] = std::move(early);
  collector_.Keep(node);
}

std::unique_ptr<EarlyContribution> Partition::TakeEarly(NodeId node) {
  return std::move(early_[node.value()]);
}

size_t Partition::DropEarly() {
  size_t dropped = 0;
  for (uint32_t node = 0; node < early_.size(); ++node) {
    if (early_[node] == nullptr || early_[node]->room().empty()) continue;
    if (collector_.IsLost(NodeId(node))) continue;  // nobody could be asked for it again
    early_[node].reset();
    collector_.Drop(NodeId(node));
    ++dropped;
  }
  return dropped;
}

void Partition::ForgetReferences(NodeId node) {
  if (first_.by_reference() && first_node_ == node) {
    Start(spec_.dtype, memory_.accumulator[parity()], first_.bytes().data(), spec_.elements);
    copied_bytes_ += first_.bytes().size();
    first_ = Payload();
  }
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
