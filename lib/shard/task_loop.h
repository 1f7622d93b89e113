// A loop as the objects of its thread see it: the time, and tasks to run later. A process gives
// them an EventLoop; tests and simulations give a loop of their own.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"

namespace addend {

class TaskLoop {
 public:
  using Task = absl::AnyInvocable<void()>;

  virtual ~TaskLoop() = default;
  // The clock of timeouts and durations. It never jumps.
  virtual absl::Time Now() const = 0;
  // The clock of traces, in nanoseconds.
  virtual int64_t TraceTime() const = 0;
  // Runs the task at the end of the current turn of the loop, not from within another task.
  virtual void Defer(Task task) = 0;
  // Returns the number of the timer.
  virtual uint64_t RunAfter(absl::Duration delay, Task task) = 0;
};

// Drops the tasks that have not run when it is destroyed: its owner may give them `this`.
class ScopedLoop final : public TaskLoop {
 public:
  // `loop` outlives this.
  explicit ScopedLoop(TaskLoop* loop) : loop_(loop) {}
  absl::Time Now() const override { return loop_->Now(); }
  int64_t TraceTime() const override { return loop_->TraceTime(); }
  void Defer(Task task) override { loop_->Defer(Guarded(std::move(task))); }
  uint64_t RunAfter(absl::Duration delay, Task task) override {
    return loop_->RunAfter(delay, Guarded(std::move(task)));
  }

 private:
  Task Guarded(Task task) {
    return [alive = std::weak_ptr<bool>(alive_), task = std::move(task)]() mutable {
      if (!alive.expired()) task();
    };
  }
  TaskLoop* const loop_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace addend
