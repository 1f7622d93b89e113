// A loop whose time the test passes.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "lib/shard/task_loop.h"

namespace addend {

class FakeLoop final : public TaskLoop {
 public:
  absl::Time Now() const override { return now_; }
  int64_t TraceTime() const override { return absl::ToUnixNanos(now_); }
  void Defer(Task task) override { deferred_.push_back(std::move(task)); }
  uint64_t RunAfter(absl::Duration delay, Task task) override {
    timers_.emplace(now_ + delay, std::move(task));
    return ++timers_begun_;
  }
  // Runs the deferred tasks, and those that they defer.
  void Settle() {
    while (!deferred_.empty()) {
      for (Task& task : std::exchange(deferred_, {})) task();
    }
  }
  void Pass(absl::Duration time) {
    const absl::Time end = now_ + time;
    Settle();
    while (!timers_.empty() && timers_.begin()->first <= end) {
      auto timer = timers_.extract(timers_.begin());
      now_ = timer.key();
      timer.mapped()();
      Settle();
    }
    now_ = end;
  }

 private:
  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
  std::vector<Task> deferred_;
  std::multimap<absl::Time, Task> timers_;
  uint64_t timers_begun_ = 0;
};

}  // namespace addend
