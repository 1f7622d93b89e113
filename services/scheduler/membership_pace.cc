// Membership: servers that have become slow, or fast again, get what they can do in the time that
// the others need.
#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_format.h"
#include "services/scheduler/membership_scope.h"

namespace addend {
namespace {

// However slow it seems: so that there is something to measure when it is fast again.
constexpr double kLeastSpeed = 0.05;

}  // namespace

void Membership::TakePaces(absl::Time now, Job& job, NodeId node,
                           const v1::HeartbeatRequest& beat) {
  if (Generation(beat.generation()) != job.generation || beat.paces().empty()) return;
  std::map<ServerId, double> waited_s;
  for (const v1::ServerPace& pace : beat.paces()) {
    waited_s[ServerId(pace.server_id())] = pace.waited_s();
  }
  job.pace.Report(now, node, waited_s);
}

void Membership::FollowPaces(Job& job) {
  if (!options_.react_to_stragglers || job.state != v1::READY) return;
  if (job.change.version != PlanVersion()) return job.pace.StartOver(event_.now);
  std::set<NodeId> nodes;
  for (const auto& [rank, node] : job.nodes) {
    if (!node.idle) nodes.insert(rank);
  }
  for (const Pace::Deviation& deviation : job.pace.Evaluate(event_.now, nodes)) {
    const auto found = servers_.find(deviation.server);
    // A colocated server shares its machine with what it is measured by.
    if (found == servers_.end() || found->second.colocated()) continue;
    Server& server = found->second;
    const double speed = std::clamp(server.speed / deviation.ratio, kLeastSpeed, 1.0);
    if (speed == server.speed) continue;
    Say(
        absl::StrFormat("rounds of job '%s' wait for %s %.2f times as long as for the others: it "
                        "counts with %.0f %% of "
                        "its bandwidth from now on",
                        job.name, NameOf(server), deviation.ratio, 100 * speed));
    server.speed = speed;
    for (auto& [id, other] : jobs_) {
      other.rebalance = true;
      other.pace.StartOver(event_.now);
    }
    return;  // one at a time: with it, the others' times change
  }
}

}  // namespace addend
