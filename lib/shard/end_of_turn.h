// A task that runs once at the end of a turn of the loop, however often it was scheduled in that
// turn: the work that a turn leaves is done together, and never inside a call of the owner's.
// Belongs to the loop's thread.
#pragma once

#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "lib/shard/event_loop.h"

namespace addend {

class EndOfTurn {
 public:
  // `run` may destroy this object. It does not run after this object is destroyed.
  EndOfTurn(EventLoop* loop, absl::AnyInvocable<void()> run) : loop_(loop), run_(std::move(run)) {}

  void Schedule() {
    if (scheduled_) return;
    scheduled_ = true;
    loop_->Defer([this, alive = std::weak_ptr<bool>(alive_)] {
      if (alive.expired()) return;
      scheduled_ = false;
      run_();
    });
  }

 private:
  EventLoop* const loop_;
  absl::AnyInvocable<void()> run_;
  bool scheduled_ = false;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace addend
