// Shares a shard's thread among the links of a transport (fair_turns.h). The turns are taken at the
// end of every turn of the event loop, so that other events come in between.
#pragma once

#include <time.h>

#include <cstdint>

#include "lib/shard/end_of_turn.h"
#include "lib/shard/event_loop.h"
#include "lib/transport/fair_turns.h"

namespace addend {

class LinkTurns {
 public:
  // Groups of the links that this end has made, and of incoming links without a group.
  static constexpr FairTurns::GroupId kMade = ~FairTurns::GroupId{0};
  static constexpr FairTurns::GroupId kStrangers = kMade - 1;
  // Enough for a hundred handshakes in a turn.
  static constexpr double kStrangersWeight = 1.0 / 32;

  explicit LinkTurns(EventLoop* loop)
      : turns_(ThreadTimeNow), end_of_turn_(loop, [this] { Run(); }) {
    turns_.SetWeight(kStrangers, kStrangersWeight);
  }

  void Join(FairTurns::Waiter* waiter, FairTurns::GroupId group) { turns_.Join(waiter, group); }
  void Leave(FairTurns::Waiter* waiter) { turns_.Leave(waiter); }
  // Queues `waiter` for its turn. Never serves it from inside this call.
  void Wait(FairTurns::Waiter* waiter) {
    turns_.Wait(waiter);
    if (!running_) end_of_turn_.Schedule();
  }

 private:
  void Run() {
    running_ = true;
    turns_.Run();
    running_ = false;
    if (turns_.AnyoneWaits()) end_of_turn_.Schedule();
  }

  static int64_t ThreadTimeNow() {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
  }

  FairTurns turns_;
  bool running_ = false;
  EndOfTurn end_of_turn_;
};

}  // namespace addend
