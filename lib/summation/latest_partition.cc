#include "lib/summation/latest_partition.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "lib/base/status_macros.h"
#include "lib/reduce/reduce.h"

namespace addend {

LatestPartition::LatestPartition(Partition::Spec spec)
    : spec_(std::move(spec)),
      version_(spec_.version),
      aborted_(spec_.aborted),
      stamp_{.updates = 0, .applied = std::vector<uint64_t>(spec_.nodes, 0)},
      reports_(spec_.nodes),
      lost_(spec_.nodes, false) {
  for (const NodeId node : spec_.lost) lost_[node.value()] = true;
  if (version_ != PlanVersion()) AwaitReports();
}

std::string_view LatestPartition::Describe() const {
  switch (state_) {
    case State::kOpen:
      return "open";
    case State::kClosed:
      return "closed";
    case State::kRecovering:
      return "recovering";
    case State::kRestoring:
      return "lacking";
  }
  return "";
}

absl::Status LatestPartition::Apply(NodeId node, Round round, Bytes contribution) {
  if (!contribution.empty()) {
    ADDEND_ASSIGN_OR_RETURN(std::shared_ptr<Arena> next, RoomForNext());
    std::vector<const void*> inputs;
    if (has_value_) inputs.push_back(value_->memory().data());
    inputs.push_back(contribution.data());
    Reduce(spec_.dtype, ReduceOp::kSum, next->memory().data(), inputs, spec_.elements, 1);
    if (value_ != nullptr && value_ != next) former_.push_back(std::move(value_));
    value_ = std::move(next);
    has_value_ = true;
  }
  stamp_.applied[node.value()] = round.value();
  ++stamp_.updates;
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const Arena>> LatestPartition::Value() {
  if (value_ == nullptr) {
    ADDEND_ASSIGN_OR_RETURN(value_, Arena::Create(payload_bytes()));  // reads as zeros
  }
  return std::shared_ptr<const Arena>(value_);
}

// The value's own memory, unless it is lent.
absl::StatusOr<std::shared_ptr<Arena>> LatestPartition::RoomForNext() {
  if (value_ != nullptr && value_.use_count() == 1) return value_;
  const auto free = std::find_if(former_.begin(), former_.end(),
                                 [](const auto& arena) { return arena.use_count() == 1; });
  if (free == former_.end()) return Arena::Create(payload_bytes());
  std::shared_ptr<Arena> room = std::move(*free);
  former_.erase(free);
  return room;
}

bool LatestPartition::HandOver(PlanVersion next) {
  if (next <= version_ || next <= next_version_) return false;
  next_version_ = next;
  return true;
}

bool LatestPartition::CloseIfDue() {
  if (state_ != State::kOpen || next_version_ <= version_) return false;
  state_ = State::kClosed;
  return true;
}

bool LatestPartition::TakeOver(PlanVersion version) {
  if (version <= version_) return false;
  version_ = version;
  AwaitReports();
  return true;
}

void LatestPartition::AwaitReports() {
  state_ = State::kRecovering;
  std::fill(reports_.begin(), reports_.end(), std::nullopt);
  has_value_ = false;
  waiting_since_ = absl::Now();
}

bool LatestPartition::AllHaveReported() const {
  for (size_t node = 0; node < reports_.size(); ++node) {
    if (!lost_[node] && !reports_[node].has_value()) return false;
  }
  return true;
}

absl::StatusOr<bool> LatestPartition::OnReport(NodeId node, Round held, Stamp stamp) {
  if (stamp.applied.size() != spec_.nodes) {
    return absl::InvalidArgumentError("a report's stamp is of another number of nodes");
  }
  reports_[node.value()] = Report{held, std::move(stamp)};
  return state_ == State::kRecovering && AllHaveReported();
}

Round LatestPartition::Held(NodeId node) const {
  const auto& report = reports_[node.value()];
  return report.has_value() ? report->held : Round(0);
}

std::optional<NodeId> LatestPartition::Holder() const {
  std::optional<NodeId> holder;
  uint64_t updates = 0;
  for (uint32_t node = 0; node < reports_.size(); ++node) {
    if (lost_[node] || !reports_[node].has_value()) continue;
    if (reports_[node]->stamp.updates <= updates) continue;
    updates = reports_[node]->stamp.updates;
    holder = NodeId(node);
  }
  return holder;
}

void LatestPartition::BeginRestore() {
  const std::optional<NodeId> holder = Holder();
  if (holder.has_value()) {
    stamp_ = reports_[holder->value()]->stamp;
    state_ = State::kRestoring;
    waiting_since_ = absl::Now();
    return;
  }
  stamp_ = Stamp{.updates = 0, .applied = std::vector<uint64_t>(spec_.nodes, 0)};
  if (value_ != nullptr) former_.push_back(std::exchange(value_, nullptr));
  state_ = State::kOpen;
  waiting_since_ = absl::InfiniteFuture();
}

void LatestPartition::EndRestore(std::shared_ptr<Arena> copy) {
  if (value_ != nullptr) former_.push_back(std::move(value_));
  value_ = std::move(copy);
  has_value_ = true;
  state_ = State::kOpen;
  waiting_since_ = absl::InfiniteFuture();
}

uint64_t LatestPartition::LostUpdates() const {
  uint64_t lost = 0;
  for (uint32_t node = 0; node < reports_.size(); ++node) {
    const uint64_t held = Held(NodeId(node)).value();
    lost += held - std::min(held, stamp_.applied[node]);
  }
  return lost;
}

bool LatestPartition::Lose(NodeId node) {
  const bool was_asked = state_ == State::kRestoring && Holder() == node;
  lost_[node.value()] = true;
  return was_asked || (state_ == State::kRecovering && AllHaveReported());
}

}  // namespace addend
