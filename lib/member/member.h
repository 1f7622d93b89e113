// A member's connection to the scheduler: registration, lease, watch, and a node's reports.
//
// Both classes register, then renew the lease from one thread and follow the watch from another. If
// the scheduler does not answer, they retry without end and log it. If it no longer knows the
// member, they register again (same request, same incarnation), and the next update carries the
// whole state.
//
// Callbacks run on the member's threads, possibly before Join has returned. Updates come one at a
// time, and no callback runs after Leave or the destructor has returned. Callbacks must not call
// Leave nor destroy the member.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "lib/member/report.h"
#include "proto/addend/v1/scheduler.pb.h"

namespace addend {

struct MemberOptions {
  std::string scheduler;  // host:port of the scheduler, or of several separated by commas; only the
                          // leader serves
  absl::Duration connect_timeout = absl::Seconds(60);  // for the first registration
  // How long a place that another member has is asked for again: a member that is started again at
  // once may come before the scheduler has heard of the end of the former member.
  absl::Duration until_place_is_free = absl::Seconds(1);
  // Called many times a second by Join, in its own thread, while it waits; true makes Join return
  // CANCELLED, so that a signal can end a process that has not joined yet (see StopSignal). May be
  // null.
  std::function<bool()> give_up;
  // The member cannot come back, because its re-registration was refused: the process should stop.
  // Called at most once, from a thread of the member. Must not be null.
  std::function<void(absl::Status)> on_fatal;
  // Servers only: the scheduler has moved all partitions of this server to others, after Drain() or
  // after another request to drain. May be called several times, from a thread of the member. May
  // be null.
  std::function<void()> on_drained = nullptr;
};

// Fills in the member's own part of a heartbeat: traffic, activity, memory. `member` is already
// filled in.
using BeatFn = std::function<void(v1::HeartbeatRequest*)>;

class ServerMember {
 public:
  // Carries out an update and returns the reservations that failed; the caller fills in member and
  // update_id.
  using UpdateFn = std::function<v1::AckReservationRequest(const v1::ServerUpdate&)>;

  // Blocks until the scheduler has answered. Logs every few seconds while it does not; after
  // connect_timeout the failure is of kUnreachable. Every other error returns at once.
  static absl::StatusOr<std::unique_ptr<ServerMember>> Join(const MemberOptions& options,
                                                            v1::RegisterServerRequest request,
                                                            UpdateFn on_update, BeatFn on_beat);
  // Ends the threads within 1 s without telling the scheduler, which declares the member lost when
  // its lease ends.
  ~ServerMember();

  // The server's number. It may change when a CPU server registers again after its lease has ended.
  // From any thread.
  uint32_t server_id() const;
  // Asks the scheduler to move this server's partitions to others, and waits until it reports the
  // server as drained; returns false if that took longer than `timeout`. Repeats the request while
  // the scheduler does not answer, unless `is_needed` returns false: then there is nothing to move
  // and it returns true. Watch and lease go on meanwhile.
  bool Drain(absl::Duration timeout, absl::FunctionRef<bool()> is_needed);
  // A colocated server, for NodeMember: adds its heartbeat to that of its node. From any thread.
  void FillCarried(v1::HeartbeatRequest* of_node);
  // The scheduler has taken it: until it has not for a while, this member sends no heartbeats.
  // `scheduler`: its place in the list.
  void WasCarried(size_t scheduler);
  // Ends the threads, then notifies the scheduler, for at most 1.5 s. A second call does nothing.
  void Leave();

 private:
  struct Impl;
  explicit ServerMember(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

class NodeMember {
 public:
  using UpdateFn = std::function<void(const v1::NodeUpdate&)>;

  // As ServerMember::Join. `colocated`: the server of this process, whose heartbeats the node's
  // carry; it outlives the node. Null: there is none.
  static absl::StatusOr<std::unique_ptr<NodeMember>> Join(const MemberOptions& options,
                                                          v1::RegisterNodeRequest request,
                                                          UpdateFn on_update, BeatFn on_beat,
                                                          ServerMember* colocated = nullptr);
  ~NodeMember();

  // The scheduler's answer to the first registration; constant.
  const v1::RegisterNodeResponse& registration() const;

  // Queues a report and returns at once; from any thread. A thread of the member sends the reports
  // in this order, several waiting declarations in one call, and repeats a call until the scheduler
  // has answered. Drops a report of a former generation. If the scheduler refuses a report for
  // another reason, the job's generation fails.
  void Send(Report report);
  // Sends the next heartbeat at once. From any thread.
  void BeatSoon();
  // Waits until all queued reports are answered; false if that took longer than `timeout`.
  bool Flush(absl::Duration timeout);

  // Ends the threads, then notifies the scheduler, for at most 1.5 s. Drops reports that are still
  // queued: call Flush first. A second call does nothing.
  void Leave();

 private:
  struct Impl;
  explicit NodeMember(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace addend
