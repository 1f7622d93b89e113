#include "lib/transport/fair_turns.h"

#include <algorithm>

namespace addend {

void FairTurns::Join(Waiter* waiter, GroupId group) {
  const bool waits = waiter->joined_ && waiter->waiting_;
  const bool served = waiter == served_;
  Leave(waiter);
  if (served) served_ = waiter;
  waiter->joined_ = true;
  waiter->group_ = group;
  ++groups_[group].members;
  if (waits) Wait(waiter);
}

void FairTurns::Leave(Waiter* waiter) {
  if (!waiter->joined_) return;
  if (waiter == served_) served_ = nullptr;
  const auto group = groups_.find(waiter->group_);
  if (waiter->waiting_) std::erase(group->second.waiting, waiter);
  waiter->joined_ = waiter->waiting_ = false;
  --group->second.members;
  DropIfEmpty(group);
}

void FairTurns::DropIfEmpty(std::map<GroupId, Group>::iterator group) {
  if (group->second.members > 0 || &group->second == serving_) return;
  if (group->second.in_order) std::erase(order_, group->first);
  groups_.erase(group);
}

void FairTurns::Wait(Waiter* waiter) {
  if (!waiter->joined_ || waiter->waiting_) return;
  waiter->waiting_ = true;
  Group& group = groups_.at(waiter->group_);
  group.waiting.push_back(waiter);
  if (group.in_order) return;
  group.in_order = true;
  order_.push_back(waiter->group_);
}

int64_t FairTurns::QuantumOf(GroupId id) const {
  const auto weight = weights_.find(id);
  if (weight == weights_.end()) return kQuantum;
  return static_cast<int64_t>(static_cast<double>(kQuantum) * weight->second);
}

void FairTurns::Run() {
  ++run_;
  // Groups that begin to wait during this run have their turn in the next run.
  for (size_t left = order_.size(); left > 0 && !order_.empty(); --left) {
    const GroupId id = order_.front();
    const auto group = groups_.find(id);
    if (group->second.served_in == run_) return;
    order_.pop_front();
    group->second.served_in = run_;
    serving_ = &group->second;
    Serve(id, &group->second);
    serving_ = nullptr;
    DropIfEmpty(group);
  }
}

// The cost of a byte depends on the work it is part of and on the cache. So while other groups
// wait, the time that they wait is the cost. Otherwise no group waits, and time need not be
// measured.
size_t FairTurns::Serve(Waiter* waiter, size_t most) {
  const bool timed = clock_ && !order_.empty();
  const int64_t begin = timed ? clock_() : 0;
  waiter->waiting_ = false;
  served_ = waiter;
  const Waiter::Work work = waiter->Serve(most);
  if (served_ != nullptr && work.again) Wait(waiter);
  served_ = nullptr;
  return timed ? static_cast<size_t>(clock_() - begin) : work.cost;
}

void FairTurns::Serve(GroupId id, Group* group) {
  const int64_t quantum = QuantumOf(id);
  const int64_t least = std::min<int64_t>(quantum, kLeastOffer);
  group->credit += quantum;
  while (group->credit > 0 && !group->waiting.empty()) {
    Waiter* const waiter = group->waiting.front();
    group->waiting.pop_front();
    const size_t cost = Serve(waiter, static_cast<size_t>(std::max(group->credit, least)));
    group->credit -= static_cast<int64_t>(std::max<size_t>(cost, 1));
  }
  group->in_order = !group->waiting.empty();
  if (group->in_order) {
    order_.push_back(id);
  } else {
    group->credit = std::min<int64_t>(group->credit, 0);
  }
}

}  // namespace addend
