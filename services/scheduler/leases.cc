// The leases and watches of members.
#include "services/scheduler/leases.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"

namespace addend {
namespace {

// The owner ticks at least so often; a much longer gap means that this process did not run.
constexpr absl::Duration kLongestTick = absl::Seconds(1);
// A node that is accused is lost as soon as its connection breaks.
constexpr absl::Duration kAccusedInterval = absl::Milliseconds(20);
// Nodes and this scheduler notice at the same time that a server was killed, but for the work that
// they have. An accusation that is older when the server's watch breaks is about something else.
constexpr absl::Duration kAccusationHolds = absl::Seconds(1);
// The interval in which nodes are told again of the nodes that a forming job waits for.
constexpr absl::Duration kFormingInterval = absl::Milliseconds(200);
// Tensors whose servers have agreed wait for others, but not long.
constexpr absl::Duration kAnsweredInterval = absl::Milliseconds(20);
// A job whose nodes were all lost is kept for so many leases, for nodes that were only cut off.
constexpr int kLeasesEmpty = 12;

}  // namespace

bool Leases::Alive(const Lease& lease, absl::Time now) const {
  if (lease.watch != 0) return true;
  return !lease.has_watched && now < lease.Deadline(length_);
}

Lease Leases::Begun(absl::Time now) {
  Lease lease;
  lease.last_seen = lease.unwatched_since = now;
  return lease;
}

Lease Leases::Restored(absl::Time now) const {
  Lease lease = Begun(now + length_);
  lease.restored = true;
  return lease;
}

void Leases::Open(WatchId watch, const Watcher& watcher, Lease* lease, Changes* changes) {
  Close(lease, absl::AbortedError("the member has opened another watch"), changes);
  lease->watch = watch;
  lease->has_watched = true;
  watches_[watch] = watcher;
}

void Leases::Close(Lease* lease, absl::Status reason, Changes* changes) {
  if (lease->watch == 0) return;
  watches_.erase(lease->watch);
  changes->EndWatch(lease->watch, std::move(reason));
  lease->watch = 0;
  lease->unwatched_since = changes->now();
}

std::optional<Watcher> Leases::Broke(WatchId watch) {
  const auto found = watches_.find(watch);
  if (found == watches_.end()) return std::nullopt;
  const Watcher watcher = found->second;
  watches_.erase(found);
  return watcher;
}

absl::Duration Leases::ForgiveGap(absl::Time now, Fleet* fleet, Jobs* jobs) {
  const absl::Duration gap = now - last_tick_ - kLongestTick;
  last_tick_ = now;
  if (gap <= kLongestTick) return absl::ZeroDuration();
  // Heartbeats that came meanwhile may not be read yet: half a lease is time for another.
  const absl::Time least = now - length_ / 2;
  const auto forgive = [&](absl::Time* since) {
    *since = std::max(*since, std::max(least, std::min(now, *since + gap)));
  };
  const auto forgive_lease = [&](Lease* lease) {
    forgive(&lease->last_seen);
    forgive(&lease->unwatched_since);
  };
  for (auto& [id, server] : fleet->servers()) forgive_lease(&server.lease);
  for (auto& [id, job] : *jobs) {
    for (auto& [rank, node] : job.nodes) {
      forgive_lease(&node.lease);
      forgive(&node.accused_since);
    }
    if (job.current.servers_due.until) *job.current.servers_due.until += gap;
  }
  return gap;
}

void Leases::Accuse(absl::Time now, std::string reason, Server* server) {
  server->accusation = std::move(reason);
  server->accused_at = now;
  next_look_ = now;
}

void Leases::Accuse(absl::Time now, NodeId reporter, std::string reason, Node* node) {
  next_look_ = now;
  if (node->accusers.empty()) node->accused_since = now;
  node->accusers[reporter] = std::move(reason);
}

std::vector<NodeId> Leases::Expired(absl::Time now, const Job& job) const {
  std::vector<NodeId> expired;
  for (const auto& [rank, node] : job.nodes) {
    if (node.lease.Deadline(length_) <= now) expired.push_back(rank);
  }
  return expired;
}

std::vector<ServerId> Leases::Expired(absl::Time now, const Fleet& fleet) const {
  std::vector<ServerId> expired;
  for (const auto& [id, server] : fleet.servers()) {
    if (server.lease.Deadline(length_) <= now) expired.push_back(id);
  }
  return expired;
}

std::string Leases::WhyExpired(absl::Time now, const Lease& lease) const {
  const std::string length = absl::FormatDuration(length_);
  return now - lease.last_seen >= length_
             ? absl::StrFormat("nothing was heard of it for %s", length)
             : absl::StrFormat("its connection broke and did not come back for %s", length);
}

const Node* Leases::Guilty(absl::Time now, const Job& job) const {
  const Node* guilty = nullptr;
  for (const auto& [rank, node] : job.nodes) {
    const bool over = now - node.accused_since >= length_;
    // A node that this scheduler has not heard yet may be on its way back.
    const bool broken = node.lease.has_watched && node.lease.watch == 0;
    if (node.accusers.empty() || (!broken && !over)) continue;
    if (guilty == nullptr || node.accusers.size() > guilty->accusers.size()) guilty = &node;
  }
  return guilty;
}

std::vector<ServerId> Leases::Guilty(const Fleet& fleet) {
  std::vector<ServerId> gone;
  for (const auto& [id, server] : fleet.servers()) {
    const Lease& lease = server.lease;
    const bool accused = server.accused_at >= lease.unwatched_since - kAccusationHolds;
    if (accused && lease.has_watched && lease.watch == 0) gone.push_back(id);
  }
  return gone;
}

std::vector<JobId> Leases::Abandoned(absl::Time now, const Jobs& jobs) const {
  std::vector<JobId> abandoned;
  for (const auto& [id, job] : jobs) {
    if (job.empty_since && now - *job.empty_since >= kLeasesEmpty * length_) {
      abandoned.push_back(id);
    }
  }
  return abandoned;
}

// A lease that begins, or a stream that breaks, after this look ends nothing before the next.
void Leases::PlanLook(absl::Time now, const Fleet& fleet, const Jobs& jobs) {
  absl::Time next = now + std::min(kLongestTick, length_);
  for (const auto& [id, server] : fleet.servers()) {
    next = std::min(next, server.lease.Deadline(length_));
    if (now - server.accused_at < kAccusationHolds) next = std::min(next, now + kAccusedInterval);
  }
  for (const auto& [id, job] : jobs) {
    for (const auto& [rank, node] : job.nodes) {
      next = std::min(next, node.lease.Deadline(length_));
      if (!node.accusers.empty()) next = std::min(next, now + kAccusedInterval);
    }
  }
  next_look_ = next;
}

absl::Time Leases::NextTick(absl::Time now, const Jobs& jobs) const {
  absl::Time next = std::min(next_look_, now + kLongestTick);
  for (const auto& [id, job] : jobs) {
    if (job.forming_changed) next = std::min(next, now + kFormingInterval);
    if (!job.current.told.answered.empty()) next = std::min(next, now + kAnsweredInterval);
  }
  return next;
}

}  // namespace addend
