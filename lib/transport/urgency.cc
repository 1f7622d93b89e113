// A sweep begins with the first priority that is pushed again after a higher one. Of a first sweep
// nothing is known in advance, so the priorities hold in it.
#include "lib/transport/urgency.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace addend {

bool Urgency::OnPush(int32_t priority, uint64_t bytes) {
  const bool recurs = pushed_.contains(priority) && priority < pushed_.rbegin()->first;
  const bool ends = recurs || pushed_.size() == kMostPriorities;
  const bool was_sweeping = sweeping_;
  if (ends) {
    EndSweep();
    sweeping_ = !classes_.empty();
  }
  if (pushes_++ > 0 && priority < last_) ++descents_;
  last_ = priority;
  pushed_[priority] += bytes;
  if (sweeping_ && priority >= classes_.rbegin()->second) sweeping_ = false;
  return sweeping_ != was_sweeping || (sweeping_ && ends);
}

int32_t Urgency::Of(int32_t priority) const {
  if (!sweeping_) return priority;
  const auto next = classes_.upper_bound(priority);
  if (next == classes_.begin()) return priority;
  return std::max(priority, std::prev(next)->second);
}

bool Urgency::IsSweep() const {
  return pushed_.size() >= kLeastPriorities && descents_ * 8 <= pushes_;
}

void Urgency::EndSweep() {
  const bool was_sweep = IsSweep();
  const std::map<int32_t, uint64_t> pushed = std::exchange(pushed_, {});
  pushes_ = descents_ = 0;
  classes_.clear();
  if (!was_sweep) return;
  double all = 0;
  for (const auto& [priority, bytes] : pushed) all += static_cast<double>(bytes);
  double below = 0;  // bytes of lower priorities
  int last = -1;
  for (const auto& [priority, bytes] : pushed) {
    const auto own = static_cast<double>(bytes);
    const int number = all == 0 ? 0 : static_cast<int>((below + own / 2) / all * kClasses);
    if (number != last) classes_[priority] = priority;
    classes_.rbegin()->second = priority;
    last = number;
    below += own;
  }
}

}  // namespace addend
