#include "lib/summation/ownership.h"

#include <algorithm>

namespace addend {

Ownership::Ownership(uint32_t nodes, PlanVersion version)
    : state_(version == PlanVersion() ? State::kOpen : State::kRecovering),
      version_(version),
      reports_(nodes),
      lacking_(nodes, false) {}

bool Ownership::Recover(PlanVersion version) {
  if (version <= version_) return false;
  version_ = version;
  state_ = State::kRecovering;
  newest_ = Round();
  std::fill(reports_.begin(), reports_.end(), std::nullopt);
  std::fill(lacking_.begin(), lacking_.end(), false);
  return true;
}

bool Ownership::OnReport(NodeId node, Round held) {
  if (state_ != State::kRecovering) return false;
  reports_[node.value()] = held;
  if (std::any_of(reports_.begin(), reports_.end(), [](const auto& r) { return !r.has_value(); })) {
    return false;
  }
  state_ = State::kOpen;
  for (const auto& report : reports_) newest_ = std::max(newest_, *report);
  for (size_t i = 0; i < reports_.size(); ++i) lacking_[i] = *reports_[i] < newest_;
  return true;
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
