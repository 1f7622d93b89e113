// The end of a store's waits. Any thread.
#pragma once

#include <chrono>

#include "absl/time/time.h"
#include "lib/base/mutex.h"

namespace addend {

class StopFlag {
 public:
  // Ends all pauses, those to come too.
  void Stop() {
    MutexLock lock(&mu_);
    stop_ = true;
    stopped_.NotifyAll();
  }
  // Waits; false at once if Stop() was or is called.
  bool Pause(absl::Duration duration) {
    const auto until = std::chrono::steady_clock::now() + absl::ToChronoMicroseconds(duration);
    MutexLock lock(&mu_);
    while (!stop_ && stopped_.WaitUntil(&mu_, until)) {
    }
    return !stop_;
  }

 private:
  Mutex mu_;
  CondVar stopped_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace addend
