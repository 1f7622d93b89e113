// The leases and watches of members: which members are lost, and when to look next. Pure: the
// caller brings the time.
//
// A member is lost at the end of its lease, or when a node cannot reach it and its connection to
// this scheduler is gone too.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "lib/base/ids.h"
#include "services/scheduler/changes.h"
#include "services/scheduler/fleet.h"
#include "services/scheduler/job.h"
#include "services/scheduler/lease.h"

namespace addend {

// The member of a watch stream.
struct Watcher {
  ServerId server;  // 0: the node
  JobId job;
  NodeId node;
};

class Leases {
 public:
  Leases(absl::Duration length, absl::Time now) : length_(length), last_tick_(now) {}

  absl::Duration length() const { return length_; }
  // A connected member lives, and so does a restored member whose lease has not ended. A new start
  // of the same member has to wait for that.
  bool Alive(const Lease& lease, absl::Time now) const;
  // Of a new member, and of a member that has to find this scheduler first.
  static Lease Begun(absl::Time now);
  Lease Restored(absl::Time now) const;

  // Watch streams. A former stream of the same member ends.
  void Open(WatchId watch, const Watcher& watcher, Lease* lease, Changes* changes);
  void Close(Lease* lease, absl::Status reason, Changes* changes);
  // The member of a stream that broke; the stream is forgotten. Empty: an unknown stream.
  std::optional<Watcher> Broke(WatchId watch);

  // Prolongs all leases if this process, or its machine, did not run: nobody could keep a lease.
  // Each lasts for half its length from now on, or longer. So too the time of accused nodes, and
  // the time that servers have to follow their jobs. Returns for how long, 0 if it ran.
  absl::Duration ForgiveGap(absl::Time now, Fleet* fleet, Jobs* jobs);

  // A node cannot reach `server`. `reason`: the sentence for people if the server is lost.
  void Accuse(absl::Time now, std::string reason, Server* server);
  // A node cannot reach the colocated server of `node`, which is on trial from its first accusation
  // on: the node has a lease's time to show that its connection to this scheduler lives.
  void Accuse(absl::Time now, NodeId reporter, std::string reason, Node* node);

  // Whether a member may be lost, or a job abandoned, of which the last look knew nothing. Else all
  // of the following would find what it found, so that ticks need not walk over all members.
  bool IsDue(absl::Time now) const { return now >= next_look_; }
  // After a look.
  void PlanLook(absl::Time now, const Fleet& fleet, const Jobs& jobs);
  // The members whose leases are over.
  std::vector<NodeId> Expired(absl::Time now, const Job& job) const;
  std::vector<ServerId> Expired(absl::Time now, const Fleet& fleet) const;
  // "nothing was heard of it for 5s"
  std::string WhyExpired(absl::Time now, const Lease& lease) const;
  // The accused node that is to go: where two members cannot reach each other, the job does not go
  // on with both. The node that most other nodes cannot reach goes first; its own accusations count
  // no more. Null: nobody.
  const Node* Guilty(absl::Time now, const Job& job) const;
  // Accused servers that are gone for a node and for this scheduler: no need to wait any longer.
  static std::vector<ServerId> Guilty(const Fleet& fleet);
  // Jobs whose nodes were all lost so long ago that they do not come back.
  std::vector<JobId> Abandoned(absl::Time now, const Jobs& jobs) const;

  // When to tick again at the latest.
  absl::Time NextTick(absl::Time now, const Jobs& jobs) const;

 private:
  const absl::Duration length_;
  absl::Time last_tick_;
  absl::Time next_look_ = absl::InfinitePast();
  std::map<WatchId, Watcher> watches_;
};

}  // namespace addend
