// The value of an asynchronous partition, its copies, and its restoration from the nodes' copies.
#include "lib/summation/latest_partition.h"

#include <algorithm>
#include <utility>

#include "lib/base/clock.h"
#include "lib/base/status_macros.h"
#include "lib/reduce/reduce.h"

namespace addend {
namespace {

// A stamp of so many nodes, with its entry in the partition's table.
constexpr uint64_t PaidStampBytes(uint32_t nodes) { return StampBytes(nodes) + 128; }

}  // namespace

LatestPartition::LatestPartition(PartitionSpec spec, std::shared_ptr<JobMemory> memory)
    : spec_(std::move(spec)),
      memory_(std::move(memory)),
      copies_(payload_bytes(), memory_),
      version_(spec_.version),
      aborted_(spec_.aborted),
      stamp_{.updates = 0, .applied = std::vector<uint64_t>(spec_.nodes, 0)},
      reports_(spec_.nodes),
      lost_(spec_.nodes, false) {
  for (uint32_t node = 0; node < spec_.nodes; ++node) lost_[node] = !spec_.TakesPart(NodeId(node));
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

absl::Status LatestPartition::Apply(NodeId node, Round round, const EncodedBytes& contribution) {
  if (!contribution.bytes.empty()) {
    ADDEND_ASSIGN_OR_RETURN(std::shared_ptr<Arena> next, copies_.RoomForNext());
    std::vector<EncodedBytes> terms;
    if (has_value_) terms.push_back({copies_.latest()->memory()});
    terms.push_back(contribution);
    ForEachTile(terms, spec_.dtype, spec_.elements, [&](size_t first, size_t count, auto inputs) {
      std::byte* const value = next->memory().data() + first * SizeOf(spec_.dtype);
      Reduce(spec_.dtype, ReduceOp::kSum, value, inputs, count, 1);
    });
    copies_.Replace(std::move(next));
    has_value_ = true;
  }
  stamp_.applied[node.value()] = round.value();
  ++stamp_.updates;
  return absl::OkStatus();
}

void LatestPartition::Postpone(NodeId node) {
  if (std::find(postponed_.begin(), postponed_.end(), node) == postponed_.end()) {
    postponed_.push_back(node);
  }
}

std::optional<NodeId> LatestPartition::TakePostponed() {
  if (postponed_.empty() || !copies_.AnyIsFree()) return std::nullopt;
  const NodeId node = postponed_.front();
  postponed_.pop_front();
  return node;
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
  ForgetStamps();
  has_value_ = false;
  waiting_since_ = SteadyNow();
}

bool LatestPartition::AllHaveReported() const {
  for (size_t node = 0; node < reports_.size(); ++node) {
    if (!lost_[node] && !reports_[node].has_value()) return false;
  }
  return true;
}

absl::StatusOr<bool> LatestPartition::OnReport(NodeId node, Round held, Stamp stamp) {
  if (stamp.updates > 0 && stamp.applied.size() != spec_.nodes) {
    return absl::InvalidArgumentError("a report's stamp is of another number of nodes");
  }
  ForgetStamp(node);
  reports_[node.value()] = Report{held, stamp.updates};
  if (stamp.updates > 0) KeepStamp(node, std::move(stamp.applied));
  return state_ == State::kRecovering && AllHaveReported();
}

void LatestPartition::KeepStamp(NodeId node, std::vector<uint64_t> applied) {
  if (Holder() != node) {
    if (PayForStamp()) stamps_[node] = std::move(applied);
    return;
  }
  if (unpaid_stamp_.has_value() && !PayForStamp()) stamps_.erase(*unpaid_stamp_);
  stamps_[node] = std::move(applied);
  unpaid_stamp_ = node;
}

void LatestPartition::ForgetStamp(NodeId node) {
  if (stamps_.erase(node) == 0) return;
  if (unpaid_stamp_ == node) {
    unpaid_stamp_.reset();
  } else if (memory_ != nullptr) {
    memory_->GiveCopy(PaidStampBytes(spec_.nodes));
  }
}

void LatestPartition::ForgetStamps() {
  while (!stamps_.empty()) ForgetStamp(stamps_.begin()->first);
}

bool LatestPartition::PayForStamp() const {
  return memory_ == nullptr || memory_->TryTakeCopy(PaidStampBytes(spec_.nodes));
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
    if (reports_[node]->updates <= updates) continue;
    updates = reports_[node]->updates;
    holder = NodeId(node);
  }
  return holder;
}

void LatestPartition::BeginRestore() {
  const std::optional<NodeId> holder = Holder();
  if (holder.has_value()) {
    std::optional<Report>& report = reports_[holder->value()];
    waiting_since_ = SteadyNow();
    if (const auto kept = stamps_.find(*holder); kept != stamps_.end()) {
      stamp_ = Stamp{.updates = report->updates, .applied = std::move(kept->second)};
      ForgetStamp(*holder);
      state_ = State::kRestoring;
    } else {
      report.reset();
      state_ = State::kRecovering;
    }
    return;
  }
  stamp_ = Stamp{.updates = 0, .applied = std::vector<uint64_t>(spec_.nodes, 0)};
  copies_.Replace(nullptr);
  state_ = State::kOpen;
  waiting_since_ = absl::InfiniteFuture();
}

void LatestPartition::EndRestore(std::shared_ptr<Arena> copy) {
  copies_.Replace(std::move(copy));
  has_value_ = true;
  ForgetStamps();
  DropFurtherCopies();
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
  ForgetStamp(node);
  return was_asked || (state_ == State::kRecovering && AllHaveReported());
}

}  // namespace addend
