// A member's side of the scheduler: joining, the lease, the watch, and what a node tells.
//
// Both classes register, then keep their lease from a thread of their own and follow their watch
// from another. A scheduler that goes away is waited for, for ever, and told of in the log; one
// that has forgotten the member is registered with again (same request, same incarnation), and the
// next update is then a full one.
//
// Callbacks run on the member's threads, possibly before Join has returned, never two updates at a
// time, and not after Leave or the destructor has returned. They must not call Leave nor destroy
// the member.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/addend/v1/scheduler.pb.h"

namespace addend {

struct MemberOptions {
  std::string scheduler;  // host:port, or several with commas, of which one leads
  absl::Duration connect_timeout = absl::Seconds(60);  // for the first registration
  // Asked many times a second by Join, in its own thread, while it waits: true ends the waiting
  // with CANCELLED, so that a signal can end a process that has not joined yet (see StopSignal).
  // May be null.
  std::function<bool()> give_up;
  // The member cannot come back (its re-registration was refused): the process should stop. Called
  // at most once, from a thread of the member. It must not be null.
  std::function<void(absl::Status)> on_fatal;
  // Servers only: the scheduler has given all partitions of this server to others, asked by Drain()
  // or by somebody else. Perhaps called several times, from a thread of the member. May be null.
  std::function<void()> on_drained = nullptr;
};

// Adds what only the member knows to a heartbeat: traffic, activity, memory. `member` is already
// filled in.
using BeatFn = std::function<void(v1::HeartbeatRequest*)>;

class ServerMember {
 public:
  // Takes in one update, and returns what could not be reserved; member and update_id are filled in
  // afterwards.
  using UpdateFn = std::function<v1::AckReservationRequest(const v1::ServerUpdate&)>;

  // Blocks until the scheduler has answered. While it does not, that is logged every few seconds;
  // after connect_timeout the status has kExitSchedulerUnreachable. Every other error returns at
  // once.
  static absl::StatusOr<std::unique_ptr<ServerMember>> Join(const MemberOptions& options,
                                                            v1::RegisterServerRequest request,
                                                            UpdateFn on_update, BeatFn on_beat);
  // Ends the threads within 1 s, without a word to the scheduler: to it the member dies when its
  // lease ends.
  ~ServerMember();

  // A CPU server whose lease had ended may be given another number when it comes back. From any
  // thread.
  uint32_t server_id() const;
  // Asks the scheduler to give this server's partitions to others, again and again while it does
  // not answer, and waits until it says that nobody needs the server any more. False if that took
  // longer than `timeout`. A scheduler that does not answer is not waited for while `is_needed`
  // says that there is nothing to move. Watch and lease go on meanwhile.
  bool Drain(absl::Duration timeout, absl::FunctionRef<bool()> is_needed);
  // Ends the threads, then tells the scheduler, for at most 1.5 s. A second call does nothing.
  void Leave();

 private:
  struct Impl;
  explicit ServerMember(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

class NodeMember {
 public:
  using UpdateFn = std::function<void(const v1::NodeUpdate&)>;

  // As ServerMember::Join.
  static absl::StatusOr<std::unique_ptr<NodeMember>> Join(const MemberOptions& options,
                                                          v1::RegisterNodeRequest request,
                                                          UpdateFn on_update, BeatFn on_beat);
  ~NodeMember();

  // The scheduler's answer to the first registration; constant.
  const v1::RegisterNodeResponse& registration() const;

  // These queue a report and return at once; from any thread. A thread of the member sends them in
  // this order, several waiting declarations in one call, and repeats a call until the scheduler
  // has answered it. A report of a generation that is over is dropped. One that the scheduler
  // refuses for another reason fails the job's generation.
  void Declare(uint32_t generation, v1::TensorDescriptor tensor);
  void Undeclare(uint32_t generation, std::string name);
  // As ReportTrainersRequest.
  void ReportTrainers(uint32_t generation, uint32_t initialised);
  void ReportIdle(uint32_t generation);
  // `kind` as NodeUpdate.failed_kind.
  void ReportFailure(uint32_t generation, absl::Status reason, std::string kind);
  // A CPU server that cannot be reached, though others may.
  void ReportServerLost(uint32_t generation, uint32_t server, const absl::Status& why);
  // As AckChangeRequest.
  void AckChange(uint32_t generation, uint64_t change, bool following);
  // Waits until all that was queued is answered; false if that took longer than `timeout`.
  bool Flush(absl::Duration timeout);

  // Ends the threads, then tells the scheduler, for at most 1.5 s. What is still queued is dropped:
  // Flush first. A second call does nothing.
  void Leave();

 private:
  struct Impl;
  explicit NodeMember(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace addend
