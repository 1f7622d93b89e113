// For how long a thread that waits looks for work before it sleeps. Waking a thread on another
// processor takes 20 us or more, longer than a small tensor's way through a process; a thread that
// looks needs a microsecond. It yields its processor between two looks, so other threads with work
// there go first.
//
// Standard library only: libaddend.so includes it.
#pragma once

#include <algorithm>
#include <chrono>

namespace addend {

// For one thread at a time.
class SpinBudget {
 public:
  using Nanoseconds = std::chrono::nanoseconds;
  // Less is worse than nothing: the thread would have burnt it, and be woken all the same.
  static constexpr Nanoseconds kLeast = std::chrono::microseconds(50);
  // A yield that takes longer gave the processor to a thread with work: it is not idle.
  static constexpr Nanoseconds kLongYield = std::chrono::microseconds(100);
  // And this is a time slice's worth of work.
  static constexpr Nanoseconds kTimeSlice = std::chrono::milliseconds(1);
  static constexpr int kMisses = 3;
  static constexpr int kRest = 64;

  // Zero: never.
  explicit SpinBudget(Nanoseconds most) : most_(most), next_(most) {}
  Nanoseconds next() const { return next_; }

  // A wait that took `waited`, of which the longest yield took `longest_yield`. If `most` would
  // have covered it on an idle processor, the next budget is twice as long as the wait. After
  // kMisses other waits, or a time slice that was given away, it is zero for kRest waits.
  void OnWait(Nanoseconds waited, Nanoseconds longest_yield) {
    if (rest_ > 0) {
      --rest_;
      return;
    }
    if (waited <= most_ && longest_yield <= kLongYield) {
      misses_ = 0;
      next_ = std::min(most_, std::max(kLeast, 2 * waited));
      return;
    }
    if (++misses_ < kMisses && longest_yield <= kTimeSlice) return;
    next_ = Nanoseconds::zero();
    misses_ = 0;
    rest_ = kRest;
  }

 private:
  const Nanoseconds most_;
  Nanoseconds next_;
  int misses_ = 0;
  int rest_ = 0;
};

}  // namespace addend
