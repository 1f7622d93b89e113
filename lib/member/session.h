// Registration, lease and watch, common to servers and nodes. Internal to lib/member.
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
#include "lib/member/prober.h"
#include "proto/addend/v1/scheduler.grpc.pb.h"

namespace addend::internal {

// Owned by a ServerMember or NodeMember. Runs two threads, heartbeat and watch, from Join to Stop;
// public methods may be called from any thread.
//
//  1. After Stop no call to the scheduler is running, and no callback.
//  2. The epoch counts registrations. A thread that learns that the scheduler does not know the
//     member passes on the epoch of its call, so that several such threads register once.
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
    // The scheduler of this place in the list has answered a heartbeat; may be null.
    std::function<void(const v1::HeartbeatResponse&, size_t scheduler)> on_beat_answer;
    // Follows the watch until it breaks, and returns the reason. Calls WatchWorks at every update.
    std::function<absl::Status(const v1::MemberId&, grpc::ClientContext*)> watch;
  };

  explicit Session(const MemberOptions& options);
  ~Session() { Stop(); }

  // Blocks until registered, then starts the threads.
  absl::Status Join(Hooks hooks);
  void Stop();
  // Stops, then notifies the scheduler. A second call does nothing.
  void Leave();

  // The stub of the scheduler that answered last, or of the next scheduler in the list after a call
  // without an answer.
  v1::Scheduler::Stub* stub() { return stubs_[current_].get(); }
  v1::MemberId id() const;
  bool stopping() const { return stopping_; }

  // Runs a single call with a deadline; Stop cancels it. Tells the outage log whether the scheduler
  // answers.
  absl::Status Call(absl::Duration timeout,
                    absl::FunctionRef<grpc::Status(grpc::ClientContext*)> call);
  // Runs a call as above; repeats it while the scheduler does not answer, and registers again if
  // the scheduler does not know the member. `call` is given the current identity. Returns any other
  // error, and CANCELLED after Stop.
  absl::Status CallUntilAnswered(
      absl::FunctionRef<grpc::Status(grpc::ClientContext*, const v1::MemberId&)> call);
  void WatchWorks();
  // Returns false if the session is stopping.
  bool Sleep(absl::Duration duration);
  // Sends the next heartbeat at once. From any thread.
  void BeatSoon();
  // Another member of this process calls FillBeat(), sends that with its own heartbeat, and calls
  // WasCarried() when the scheduler has taken it: while it does, this session sends no heartbeats.
  void FillBeat(v1::HeartbeatRequest* request);
  void WasCarried(size_t scheduler);

 private:
  class CallScope;

  // Moves on to the next scheduler: number `used` has not answered.
  void TryNext(size_t used) { current_.compare_exchange_strong(used, (used + 1) % stubs_.size()); }
  // Stays with the scheduler that has answered. Cancels a watch that hangs at another scheduler, so
  // that it is reopened here.
  void StayWith(size_t used);
  absl::Status RegisterFirst();
  // Attempts once; options_.give_up cancels the attempt.
  absl::StatusOr<Registered> RegisterUnlessGivenUp(grpc::ClientContext* context);
  void RunHeartbeat();
  bool IsCarried(absl::Duration interval) const;
  // Sleeps as Sleep() does, but BeatSoon() ends it.
  bool SleepUntilBeat(absl::Duration duration);
  void RunWatch();
  // Returns false if the member cannot come back; on_fatal has been called by then.
  bool RegisterAgain(uint64_t epoch);
  void Fail(absl::Status status);
  uint64_t epoch() const;

  const MemberOptions options_;
  std::vector<std::unique_ptr<v1::Scheduler::Stub>> stubs_;
  std::atomic<size_t> current_{0};
  Hooks hooks_;
  Outage outage_;
  Prober prober_;
  std::thread heartbeat_;
  std::thread watch_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> answers_{true};       // the scheduler has answered the last call
  std::atomic<bool> watch_works_{false};  // an update has come since the watch was opened

  Mutex registering_;  // held while registering; before mu_
  mutable Mutex mu_;
  CondVar stopped_;
  std::set<grpc::ClientContext*> calls_ ABSL_GUARDED_BY(mu_);
  grpc::ClientContext* watch_call_ ABSL_GUARDED_BY(mu_) = nullptr;
  size_t watched_ ABSL_GUARDED_BY(mu_) = 0;  // index of the scheduler that the watch is open at
  Registered registered_ ABSL_GUARDED_BY(mu_);
  uint64_t epoch_ ABSL_GUARDED_BY(mu_) = 0;  // 0: not yet registered
  bool failed_ ABSL_GUARDED_BY(mu_) = false;
  bool left_ ABSL_GUARDED_BY(mu_) = false;
  bool beat_soon_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time carried_at_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
};

}  // namespace addend::internal
