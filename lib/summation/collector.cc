// The order of the nodes in a round.
#include "lib/summation/collector.h"

#include <algorithm>

#include "lib/base/status_macros.h"

namespace addend {

Collector::Collector(uint32_t nodes) : states_(nodes, State::kMissing), lost_(nodes, false) {
  ADDEND_CHECK(nodes > 0, "a job has at least one node");
}

uint32_t Collector::NodeAt(uint32_t position) const {
#ifdef ADDEND_FAULT_WRONG_ORDER
  if (states_.size() > 2 && (position == 1 || position == 2)) return 3 - position;
#endif
  return position;
}

uint32_t Collector::NextFrom(uint32_t position) const {
  while (position < states_.size() && states_[NodeAt(position)] == State::kAbsent) ++position;
  return position;
}

uint32_t Collector::contributors() const {
  const auto absent = std::count(states_.begin(), states_.end(), State::kAbsent);
  return static_cast<uint32_t>(states_.size() - static_cast<size_t>(absent));
}

NodeId Collector::turn() const { return NodeId(NodeAt(position_)); }

Collector::Standing Collector::Classify(NodeId node, Round round) const {
  if (round > round_) return Standing::kAhead;
  if (round < round_) return addend::Next(round) == round_ ? Standing::kSealed : Standing::kOld;
  const State state = states_[node.value()];
  if (state == State::kSummed || state == State::kKept) return Standing::kRepeated;
  return position_ < states_.size() && turn() == node ? Standing::kItsTurn : Standing::kEarly;
}

void Collector::Keep(NodeId node) { states_[node.value()] = State::kKept; }
void Collector::Drop(NodeId node) { states_[node.value()] = State::kDropped; }

void Collector::Forget(NodeId node) {
  if (states_[node.value()] != State::kSummed) states_[node.value()] = State::kMissing;
}

void Collector::Lose(NodeId node) {
  lost_[node.value()] = true;
  State& state = states_[node.value()];
  if (state == State::kSummed || state == State::kKept) return;
  state = State::kAbsent;
  position_ = NextFrom(position_);
}

void Collector::Summed() {
  ADDEND_CHECK(position_ < states_.size(), "all nodes are summed already");
  states_[NodeAt(position_)] = State::kSummed;
  position_ = NextFrom(position_ + 1);
}

Collector::Next Collector::Advance() {
  if (position_ == states_.size()) return Next::kSeal;
  State& state = states_[NodeAt(position_)];
  if (state == State::kKept) return Next::kKept;
  if (state != State::kDropped) return Next::kWait;
  state = State::kAsked;
  return Next::kAsk;
}

void Collector::Seal() {
  ADDEND_CHECK(position_ == states_.size(), "a round is sealed when all nodes are summed");
  round_ = addend::Next(round_);
  Open();
}

void Collector::Restart(Round round) {
  round_ = std::max(round_, round);
  Open();
}

void Collector::GoBack() {
  round_ = Round(round_.value() - 1);
  Open();
}

void Collector::Open() {
  for (size_t node = 0; node < states_.size(); ++node) {
    states_[node] = lost_[node] ? State::kAbsent : State::kMissing;
  }
  position_ = NextFrom(0);
}

bool Collector::HasPushed(NodeId node) const {
  const State state = states_[node.value()];
  return state != State::kMissing && state != State::kAsked && state != State::kAbsent;
}

bool Collector::IsOpen() const {
  return std::any_of(states_.begin(), states_.end(), [](State state) {
    return state != State::kMissing && state != State::kAbsent;
  });
}

}  // namespace addend
