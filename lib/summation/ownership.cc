#include "lib/summation/ownership.h"

#include <algorithm>

namespace addend {

Ownership::Ownership(uint32_t nodes, PlanVersion version, bool handed_over)
    : state_(version == PlanVersion() || handed_over ? State::kOpen : State::kRecovering),
      version_(version),
      reports_(nodes),
      lacking_(nodes, false) {}

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
  if (state_ != State::kRecovering) return false;
  reports_[node.value()] = held;
  if (std::any_of(reports_.begin(), reports_.end(), [](const auto& r) { return !r.has_value(); })) {
    return false;
  }
  state_ = next_version_ > version_ ? State::kClosing : State::kOpen;
  for (const auto& report : reports_) newest_ = std::max(newest_, *report);
  for (size_t i = 0; i < reports_.size(); ++i) lacking_[i] = *reports_[i] < newest_;
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

NodeId Ownership::Holder() const {
  const auto holder = std::find(reports_.begin(), reports_.end(), newest_);
  return NodeId(static_cast<uint32_t>(holder - reports_.begin()));
}

void Ownership::Supplied() { std::fill(lacking_.begin(), lacking_.end(), false); }

}  // namespace addend
