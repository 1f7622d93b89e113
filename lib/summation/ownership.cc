// The transitions of spec/recovery.pml.
#include "lib/summation/ownership.h"

#include <algorithm>

namespace addend {

Ownership::Ownership(uint32_t nodes, PlanVersion version, bool handed_over)
    : state_(version == PlanVersion() || handed_over ? State::kOpen : State::kRecovering),
      version_(version),
      reports_(nodes),
      lacking_(nodes, false),
      lost_(nodes, false) {}

bool Ownership::TakeOver(PlanVersion version, bool handed_over) {
  if (version <= version_) return false;
  version_ = version;
  state_ = handed_over ? State::kOpen : State::kRecovering;
  newest_ = Round();
  std::fill(reports_.begin(), reports_.end(), std::nullopt);
  std::fill(lacking_.begin(), lacking_.end(), false);
  return true;
}

bool Ownership::HandOver(PlanVersion next) {
  if (next <= version_ || (state_ != State::kOpen && state_ != State::kRecovering)) return false;
  next_version_ = next;
  if (state_ == State::kOpen) state_ = State::kClosing;
  return true;
}

bool Ownership::CloseIfDue(bool between_rounds) {
  if (state_ != State::kClosing || AnyLacks() || !between_rounds) return false;
  state_ = State::kClosed;
  return true;
}

bool Ownership::OnReport(NodeId node, Round held) {
  if (state_ != State::kRecovering || lost_[node.value()]) return false;
  reports_[node.value()] = held;
  return EndIfAllHaveReported();
}

bool Ownership::Lose(NodeId node) {
  lost_[node.value()] = true;
  reports_[node.value()].reset();
  lacking_[node.value()] = false;
  return state_ == State::kRecovering && EndIfAllHaveReported();
}

bool Ownership::EndIfAllHaveReported() {
  for (size_t i = 0; i < reports_.size(); ++i) {
    if (!reports_[i].has_value() && !lost_[i]) return false;
  }
  state_ = next_version_ > version_ ? State::kClosing : State::kOpen;
  for (const auto& report : reports_) newest_ = std::max(newest_, report.value_or(Round()));
  for (size_t i = 0; i < reports_.size(); ++i) {
    lacking_[i] = reports_[i].has_value() && *reports_[i] < newest_;
  }
  return true;
}

std::string_view Ownership::Describe() const {
  if (Sums() && AnyLacks()) return "lacking";
  switch (state_) {
    case State::kOpen:
      return "open";
    case State::kClosing:
      return "closing";
    case State::kClosed:
      return "closed";
    case State::kRecovering:
      return "recovering";
  }
  return "unknown";
}

bool Ownership::AnyLacks() const {
  return std::any_of(lacking_.begin(), lacking_.end(), [](bool lacks) { return lacks; });
}

std::optional<NodeId> Ownership::Holder() const {
  const auto holder = std::find(reports_.begin(), reports_.end(), newest_);
  if (holder == reports_.end()) return std::nullopt;
  return NodeId(static_cast<uint32_t>(holder - reports_.begin()));
}

void Ownership::GoBack() {
  newest_ = Round(newest_.value() - 1);
  Supplied();
}

void Ownership::Supplied() { std::fill(lacking_.begin(), lacking_.end(), false); }

}  // namespace addend
