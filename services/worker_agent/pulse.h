// Notices that this process did not run for so long that the job may go on without its node. The
// frames in its sockets are older than the pause: a server of its own could complete a round that
// the other nodes complete without it. So no result is told to a rank until the scheduler, asked
// after the pause, has confirmed that the node still takes part. A machine whose clock stands still
// with it is not noticed. Pure. Belongs to the agent's core thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/time/time.h"

namespace addend {

class Pulse {
 public:
  // Once a second, and before any result is told. `lease`: the node's at the scheduler; 0: it is
  // no member. True: the first pause after which the scheduler is to be asked.
  bool Beat(absl::Time now, absl::Duration lease) {
    const absl::Duration paused = now - std::exchange(last_, std::max(last_, now));
    // The last heartbeat may have been sent a third of a lease before.
    const absl::Duration long_pause = std::max(lease * 2 / 3, absl::Seconds(2));
    const bool first = paused == absl::InfiniteDuration();
    if (first || lease <= absl::ZeroDuration() || paused < long_pause) return false;
    ++pauses_;
    const bool news = !asking_;
    asking_ = true;
    return news;
  }
  // The scheduler has yet to say that the node takes part.
  bool asking() const { return asking_; }
  // The number of the last pause, while it is to be confirmed; else 0.
  uint64_t question() const { return asking_ ? pauses_ : 0; }
  // True: the node takes part, whatever it has missed.
  bool Confirm(uint64_t question) {
    if (!asking_ || question != pauses_) return false;
    asking_ = false;
    return true;
  }

 private:
  absl::Time last_ = absl::InfinitePast();
  uint64_t pauses_ = 0;
  bool asking_ = false;
};

}  // namespace addend
