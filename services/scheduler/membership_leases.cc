// Membership: who is lost. A member's lease ends, or others cannot reach it.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "services/scheduler/membership_scope.h"

namespace addend {
namespace {

// The owner ticks at least so often; a much longer gap means that this process did not run.
constexpr absl::Duration kLongestTick = absl::Seconds(1);
// A node that is accused is lost as soon as its connection breaks.
constexpr absl::Duration kAccusedInterval = absl::Milliseconds(20);
// A job whose nodes were all lost is kept for so many leases, for nodes that were only cut off.
constexpr int kLeasesEmpty = 12;

}  // namespace

bool Membership::Alive(const Lease& lease) const {
  if (lease.watch != 0) return true;
  return !lease.has_watched && event_.now < lease.Deadline(options_.lease);
}

absl::Time Membership::Tick(absl::Time now, Decision* decision) {
  Scope scope(this, now, decision);
  ForgiveGap(now);
  EndLeases();
  JudgeAccused();
  RemoveEmptyJobs();
  RaiseSpeeds();
  for (auto& [id, job] : jobs_) {
    FollowPaces(job);
    for (const auto& [rank, node] : job.nodes) {
      if (TokenIsDue(job, node)) Single(job, rank);
    }
    if (!job.forming_changed) continue;
    job.forming_changed = false;
    job.forming_told = now;
    Broadcast(job);
  }
  return NextDeadline();
}

// While this process (or its machine) stood still nobody could keep a lease.
void Membership::ForgiveGap(absl::Time now) {
  const absl::Duration gap = now - last_tick_ - kLongestTick;
  last_tick_ = now;
  if (gap <= kLongestTick) return;
  const auto forgive = [&](Lease* lease) {
    lease->last_seen = std::max(lease->last_seen, std::min(now, lease->last_seen + gap));
    lease->unwatched_since = std::min(now, lease->unwatched_since + gap);
  };
  for (auto& [id, server] : servers_) forgive(&server.lease);
  for (auto& [id, job] : jobs_) {
    for (auto& [rank, node] : job.nodes) forgive(&node.lease);
  }
  Say(absl::StrFormat("the scheduler did not run for %s; leases are prolonged by that",
                      absl::FormatDuration(absl::Trunc(gap, absl::Milliseconds(1)))));
}

void Membership::EndLeases() {
  const auto why = [this](const Lease& lease) {
    const std::string length = absl::FormatDuration(options_.lease);
    return event_.now - lease.last_seen >= options_.lease
               ? absl::StrFormat("nothing was heard of it for %s", length)
               : absl::StrFormat("its connection broke and did not come back for %s", length);
  };
  // Nodes first: where an agent died, the reason should name its node and not its server.
  for (auto& [id, job] : jobs_) {
    std::vector<NodeId> over;
    for (const auto& [rank, node] : job.nodes) {
      if (node.lease.Deadline(options_.lease) <= event_.now) over.push_back(rank);
    }
    for (const NodeId rank : over) {
      const Node& node = job.nodes.at(rank);
      RemoveNode(job, rank, absl::StrFormat("%s was lost: %s", NameOf(job, node), why(node.lease)),
                 true);
    }
  }
  std::vector<ServerId> over;
  for (const auto& [id, server] : servers_) {
    if (server.lease.Deadline(options_.lease) <= event_.now) over.push_back(id);
  }
  for (const ServerId id : over) {
    const Server& server = servers_.at(id);
    RemoveServer(id, event_kind::kLost,
                 absl::StrFormat("%s was lost: %s", NameOf(server), why(server.lease)));
  }
}

// Who is accused has one lease to show that its connection to this scheduler lives; but where two
// members cannot reach each other, the job does not go on with both. The one that most others
// cannot reach goes first, and what it has said itself counts no more.
void Membership::JudgeAccused() {
  for (auto& [id, job] : jobs_) {
    while (true) {
      const Node* guilty = nullptr;
      for (const auto& [rank, node] : job.nodes) {
        const bool over = event_.now - node.accused_since >= options_.lease;
        if (node.accusers.empty() || (node.lease.watch != 0 && !over)) continue;
        if (guilty == nullptr || node.accusers.size() > guilty->accusers.size()) guilty = &node;
      }
      if (guilty == nullptr) break;
      const NodeId rank = guilty->rank;
      const std::string why = guilty->accusers.begin()->second;
      RemoveNode(job, rank, absl::StrFormat("%s was lost: %s", NameOf(job, *guilty), why), true);
    }
  }
}

void Membership::Accuse(Job& job, const Server& server, const Node& reporter,
                        const std::string& why) {
  const auto found = job.nodes.find(NodeId(server.info.colocated_node()));
  if (found == job.nodes.end() || server.info.colocated_job() != job.name) return;
  Node& node = found->second;
  if (!job.TakesPart(node)) return;
  if (node.accusers.empty()) node.accused_since = event_.now;
  node.accusers[reporter.rank] = absl::StrFormat("%s cannot reach it (%s)", NameOf(reporter), why);
}

void Membership::RemoveEmptyJobs() {
  std::vector<JobId> over;
  for (const auto& [id, job] : jobs_) {
    if (job.empty_since && event_.now - *job.empty_since >= kLeasesEmpty * options_.lease) {
      over.push_back(id);
    }
  }
  for (const JobId id : over) RemoveJob(jobs_.at(id));
}

absl::Time Membership::NextDeadline() const {
  absl::Time next = event_.now + kLongestTick;
  for (const auto& [id, server] : servers_) {
    next = std::min(next, server.lease.Deadline(options_.lease));
  }
  for (const auto& [id, job] : jobs_) {
    for (const auto& [rank, node] : job.nodes) {
      next = std::min(next, node.lease.Deadline(options_.lease));
      if (!node.accusers.empty()) next = std::min(next, event_.now + kAccusedInterval);
    }
    if (job.forming_changed) next = std::min(next, event_.now + absl::Milliseconds(200));
  }
  return next;
}

}  // namespace addend
