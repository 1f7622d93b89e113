// Waits for the end of a service: SIGINT, SIGTERM, or a component that cannot go on.
#pragma once

#include <signal.h>

#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "lib/base/fd.h"
#include "lib/base/mutex.h"

namespace addend {

// Created in main() before the first thread starts: it blocks SIGINT and SIGTERM in the calling
// thread, and threads inherit the mask. After a signal has been taken the signals have their usual
// effect again, so that a second Ctrl-C ends a process whose shutdown hangs. Until then they stay
// blocked, beyond the object's life too: a process that ends by itself, as a drained server does,
// still ends with its own status if it is asked to end meanwhile.
//
// A SIGTERM that the parent process has made ignored stays ignored: a batch system sends it to all
// processes of a job, of which some are still needed.
class StopSignal {
 public:
  StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // The signal received now or in an earlier call; nullopt if `timeout` passed or RequestStop was
  // called. From a single thread, the creator's.
  std::optional<int> Wait(absl::Duration timeout);

  // Waits for a signal, whether or not RequestStop is or was called. From the creator's thread.
  void WaitForSignal();

  // Waits for a signal (returns OK: a wanted end) or for RequestStop (returns its reason).
  absl::Status WaitUntilStopped();

  // Ends the waiting with a reason, until Resume(). The first reason counts. From any thread.
  void RequestStop(absl::Status reason);
  // Forgets the reason: the waiting begins anew. From the creator's thread, when no other thread
  // can call RequestStop.
  void Resume();
  // The reason given to RequestStop, if it was called. From any thread.
  std::optional<absl::Status> stop_requested() const;

 private:
  bool TakeSignal();

  sigset_t old_mask_;
  std::optional<int> taken_;
  UniqueFd signals_;
  UniqueFd wakeup_;
  mutable Mutex mu_;
  std::optional<absl::Status> reason_ ABSL_GUARDED_BY(mu_);
};

}  // namespace addend
