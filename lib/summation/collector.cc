#include "lib/summation/collector.h"

#include <algorithm>

#include "lib/base/status_macros.h"

namespace addend {

Collector::Collector(uint32_t nodes) : states_(nodes, State::kMissing) {
  ADDEND_CHECK(nodes > 0, "a job has at least one node");
}

uint32_t Collector::NodeAt(uint32_t position) const {
#ifdef ADDEND_FAULT_WRONG_ORDER
  if (states_.size() > 2 && (position == 1 || position == 2)) return 3 - position;
#endif
  return position;
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

void Collector::Summed() {
  ADDEND_CHECK(position_ < states_.size(), "all nodes are summed already");
  states_[NodeAt(position_)] = State::kSummed;
  ++position_;
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
  position_ = 0;
  std::fill(states_.begin(), states_.end(), State::kMissing);
}

void Collector::Restart(Round round) {
  round_ = std::max(round_, round);
  position_ = 0;
  std::fill(states_.begin(), states_.end(), State::kMissing);
}

bool Collector::HasPushed(NodeId node) const { return states_[node.value()] != State::kMissing; }

bool Collector::IsOpen() const {
  return position_ > 0 || std::any_of(states_.begin(), states_.end(),
                                      [](State state) { return state != State::kMissing; });
}

}  // namespace addend
