// Membership: servers that have become slow, or fast again, get what they can do in the time that
// the others need.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "absl/strings/str_format.h"
#include "services/scheduler/membership_scope.h"

namespace addend {
namespace {

// However slow it seems: so that there is something to measure when it is fast again.
constexpr double kLeastSpeed = 0.05;

// By how much less (or more) a server can do than it is taken for, if it is at work `ratio` times
// as long as the others. Servers far from level hold the others up, which hides some of the
// difference. Near to level the others have more to do when it has less, which exaggerates it.
double StepFor(const Server& server, double ratio) {
  return server.speed < 1 ? std::pow(ratio, 0.75) : ratio;
}

// What one that may do more is tried with: times its speed.
constexpr double kTrial = 1.5;

// Servers are compared with each other only. False if the fastest did already.
bool CountFastestInFull(const std::vector<Server*>& servers) {
  double fastest = 0;
  for (const Server* server : servers) fastest = std::max(fastest, server->speed);
  if (fastest == 1 || servers.empty()) return false;
  for (Server* server : servers) server->speed /= fastest;
  return true;
}

}  // namespace

void Membership::TakePaces(absl::Time now, Job& job, NodeId node,
                           const v1::HeartbeatRequest& beat) {
  if (Generation(beat.generation()) != job.generation || beat.paces().empty()) return;
  std::map<ServerId, Pace::Service> served;
  for (const v1::ServerPace& pace : beat.paces()) {
    served[ServerId(pace.server_id())] = {pace.served_s(), pace.services()};
  }
  job.pace.Report(now, node, served);
}

// The CPU servers that the job uses.
std::vector<Server*> Membership::CpuServersOf(const Job& job) {
  std::vector<Server*> servers;
  for (const ServerId id : job.plan_servers) {
    const auto found = servers_.find(id);
    if (found != servers_.end() && !found->second.colocated() && !found->second.draining) {
      servers.push_back(&found->second);
    }
  }
  return servers;
}

// Whose times are compared: the CPU servers'. A node's link to a colocated server carries less than
// one to a CPU server, so it is busy for less of the same round. The time of a server that has more
// than its share, since partitions are whole, says less.
std::map<ServerId, double> Membership::PaceWeights(const Job& job) const {
  std::map<ServerId, double> weights;
  const PlannerJob view = ViewOf(job);
  double total = 0;
  for (const PlannerServer& server : view.servers) {
    total += static_cast<double>(server.load.load_bytes);
  }
  const auto targets = TargetShares(view, total);
  if (!targets.ok() || total == 0) return weights;
  for (size_t i = 0; i < view.servers.size(); ++i) {
    if (view.servers[i].node) continue;
    const double assigned = static_cast<double>(view.servers[i].load.load_bytes) / total;
    if (assigned > 0 && targets->shares[i] > 0) {
      weights[view.servers[i].id] = targets->shares[i] / assigned;
    }
  }
  return weights;
}

// The one that was the fastest may have gone.
void Membership::RaiseSpeeds() {
  std::vector<Server*> servers;
  for (auto& [id, server] : servers_) {
    if (!server.colocated() && !server.draining) servers.push_back(&server);
  }
  if (!CountFastestInFull(servers)) return;
  for (auto& [id, job] : jobs_) {
    job.rebalance = PlanReason::kPace;
    job.pace.StartOver(event_.now);
  }
}

void Membership::FollowPaces(Job& job) {
  if (!options_.react_to_stragglers || job.state != v1::READY) return;
  if (job.change.version != PlanVersion()) return job.pace.StartOver(event_.now);
  if (!job.pace.HasNews()) return;
  std::set<NodeId> nodes;
  for (const auto& [rank, node] : job.nodes) {
    if (job.TakesPart(node)) nodes.insert(rank);
  }
  const std::vector<Server*> cpu_servers = CpuServersOf(job);
  std::set<ServerId> reduced;
  for (const Server* server : cpu_servers) {
    if (server->speed < 1) reduced.insert(server->id);
  }
  const auto deviations = job.pace.Evaluate(event_.now, nodes, PaceWeights(job), reduced);
  if (!deviations) return;
  // One at a time: with it, the others' times change.
  for (const Pace::Deviation& deviation : *deviations) {
    if (FollowPace(job, deviation, cpu_servers)) return;
  }
}

// False if nothing has changed.
bool Membership::FollowPace(const Job& job, const Pace::Deviation& deviation,
                            const std::vector<Server*>& all) {
  const auto found = std::find_if(
      all.begin(), all.end(), [&](const Server* server) { return server->id == deviation.server; });
  if (found == all.end()) return false;
  Server& server = **found;
  if (deviation.trial) {
    if (!Try(server, all)) return false;
    Note(event_kind::kPlanned, job.name,
         absl::StrFormat("%s is not slower than the others with what it has to do for job '%s': it "
                         "counts with %.0f %% of its bandwidth on trial",
                         NameOf(server), job.name, 100 * server.speed));
    return true;
  }
  if (!SetSpeed(server, server.speed / StepFor(server, deviation.ratio), all)) return false;
  Note(
      event_kind::kPlanned, job.name,
      absl::StrFormat("%s is at work for job '%s' %.2f times as long as the others: it counts with "
                      "%.0f %% of its bandwidth from now on",
                      NameOf(server), job.name, deviation.ratio, 100 * server.speed));
  return true;
}

// As much more as moves something.
bool Membership::Try(Server& server, const std::vector<Server*>& all) {
  for (double speed = server.speed; speed < 1;) {
    speed = std::min(speed * kTrial, 1.0);
    if (SetSpeed(server, speed, all)) return true;
  }
  return false;
}

// False if nothing would move, because partitions are whole: then all stays as it is.
bool Membership::SetSpeed(Server& server, double speed, const std::vector<Server*>& all) {
  std::vector<double> former;
  for (const Server* other : all) former.push_back(other->speed);
  server.speed = std::max(speed, kLeastSpeed);
  CountFastestInFull(all);
  for (auto& [id, job] : jobs_) {
    if (job.state != v1::READY) continue;
    std::vector<uint64_t> ignored;
    const auto planned = PlanMoves(PartitionsOf(job, &ignored), ViewOf(job));
    if (planned.ok() && !planned->empty()) job.rebalance = PlanReason::kPace;
  }
  const bool moves = std::any_of(jobs_.begin(), jobs_.end(),
                                 [](const auto& job) { return job.second.rebalance.has_value(); });
  for (size_t i = 0; i < all.size() && !moves; ++i) all[i]->speed = former[i];
  for (auto& [id, job] : jobs_) {
    if (moves) job.pace.StartOver(event_.now);
  }
  return moves;
}

}  // namespace addend
