// What servers and nodes have in common: registering, the lease, the watch. Internal to lib/member.
#pragma once

#include <grpcpp/client_context.h>

#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "lib/base/mutex.h"
#include "lib/member/member.h"
#include "lib/member/outage.h"
#include "proto/addend/v1/scheduler.grpc.pb.h"

namespace addend::internal {

// Owned by a ServerMember or NodeMember. Two threads of its own, heartbeat and watch, from Join to
// Stop; public methods may be called from any thread.
//
// 1. After Stop no call to the scheduler is running and no callback is.
// 2. The epoch counts registrations. Who finds that the scheduler does not know the member says
// under which epoch, so
//    that several threads with the same finding register once.
class Session {
 public:
  struct Registered {
    v1::MemberId id;
    double lease_s = 0;
  };
  struct Hooks {
    // Registers; called by one thread at a time. `previous` is null at the first registration.
    std::function<absl::StatusOr<Registered>(grpc::ClientContext*, const v1::MemberId* previous)>
        register_member;
    BeatFn beat;
    // Follows the watch until it breaks, and returns why. Calls WatchWorks at every update.
    std::function<absl::Status(const v1::MemberId&, grpc::ClientContext*)> watch;
  };

  explicit Session(const MemberOptions& options);
  ~Session() { Stop(); }

  // Blocks until registered, then starts the threads.
  absl::Status Join(Hooks hooks);
  void Stop();
  // Stop, then tell the scheduler. Once.
  void Leave();

  // Of the scheduler that answered last, or of the next one in the row after one that did not.
  v1::Scheduler::Stub* stub() { return stubs_[current_].get(); }
  v1::MemberId id() const;
  bool stopping() const { return stopping_; }

  // Runs one call with a deadline; Stop cancels it. Keeps the log up to date on whether the
  // scheduler answers.
  absl::Status Call(absl::Duration timeout,
                    absl::FunctionRef<grpc::Status(grpc::ClientContext*)> call);
  // The same, but repeats it while the scheduler does not answer, and registers again when it does
  // not know the member. `call` is given the current identity. Any other error, or CANCELLED by
  // Stop, is returned.
  absl::Status CallUntilAnswered(
      absl::FunctionRef<grpc::Status(grpc::ClientContext*, const v1::MemberId&)> call);
  void WatchWorks();
  // False if stopping.
  bool Sleep(absl::Duration duration);

 private:
  class CallScope;

  // The scheduler number `used` has not answered.
  void TryNext(size_t used) { current_.compare_exchange_strong(used, (used + 1) % stubs_.size()); }
  // It has. A watch that hangs at another one, which stands still, is opened anew.
  void StayWith(size_t used);
  absl::Status RegisterFirst();
  // One attempt, cancelled when options_.give_up says so.
  absl::StatusOr<Registered> RegisterUnlessGivenUp(grpc::ClientContext* context);
  void RunHeartbeat();
  void RunWatch();
  // False if the member cannot come back; on_fatal has then been called.
  bool RegisterAgain(uint64_t epoch);
  void Fail(absl::Status status);
  uint64_t epoch() const;

  const MemberOptions options_;
  std::vector<std::unique_ptr<v1::Scheduler::Stub>> stubs_;
  std::atomic<size_t> current_{0};
  Hooks hooks_;
  Outage outage_;
  std::thread heartbeat_;
  std::thread watch_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> answers_{true};       // the scheduler has answered the last call
  std::atomic<bool> watch_works_{false};  // since the watch was last opened

  Mutex registering_;  // held while registering; before mu_
  mutable Mutex mu_;
  CondVar stopped_;
  std::set<grpc::ClientContext*> calls_ ABSL_GUARDED_BY(mu_);
  grpc::ClientContext* watch_call_ ABSL_GUARDED_BY(mu_) = nullptr;
  size_t watched_ ABSL_GUARDED_BY(mu_) = 0;  // the scheduler that it is at
  Registered registered_ ABSL_GUARDED_BY(mu_);
  uint64_t epoch_ ABSL_GUARDED_BY(mu_) = 0;  // 0: not yet registered
  bool failed_ ABSL_GUARDED_BY(mu_) = false;
  bool left_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace addend::internal
