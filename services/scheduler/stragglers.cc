// Servers that are slower or faster than their plan takes them for.
#include "services/scheduler/stragglers.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "services/scheduler/job_servers.h"

namespace addend {
namespace {

// The least speed, so that there is something to measure when the server is fast again.
constexpr double kLeastSpeed = 0.05;

// The factor by which a server's speed is corrected if it is at work `ratio` times as long as the
// others. Servers far from level hold the others up, which hides some of the difference. Near to
// level the others have more to do when this server has less, which exaggerates it.
double StepFor(double speed, double ratio) { return speed < 1 ? std::pow(ratio, 0.75) : ratio; }

// The factor of a trial with more.
constexpr double kTrial = 1.5;

// Servers are compared with each other only. False if the fastest counted in full already.
bool CountFastestInFull(Job& job, const std::set<ServerId>& servers) {
  double fastest = 0;
  for (const ServerId server : servers) fastest = std::max(fastest, job.SpeedOf(server));
  if (fastest == 1 || servers.empty()) return false;
  for (const ServerId server : servers) job.speeds[server] = job.SpeedOf(server) / fastest;
  std::erase_if(job.speeds, [](const auto& speed) { return speed.second >= 1; });
  return true;
}

}  // namespace

// Only of the servers of the job's plan: a node may name any number of servers, and a window of the
// pace grows with the servers named in it.
void TakePaces(absl::Time now, NodeId node, const v1::HeartbeatRequest& beat, Job* job) {
  JobGeneration& current = job->current;
  if (current.state != v1::READY || Generation(beat.generation()) != current.number) return;
  std::map<ServerId, Pace::Service> served;
  for (const v1::ServerPace& pace : beat.paces()) {
    const ServerId server(pace.server_id());
    if (!current.plan_servers.contains(server)) continue;
    served[server] = {pace.served_s(), pace.services()};
  }
  if (!served.empty()) current.pace.Report(now, node, served);
}

std::map<ServerId, double> LowestSpeeds(const Jobs& jobs) {
  std::map<ServerId, double> lowest;
  for (const auto& [id, job] : jobs) {
    for (const auto& [server, speed] : job.speeds) {
      double& known = lowest.emplace(server, speed).first->second;
      known = std::min(known, speed);
    }
  }
  return lowest;
}

// The CPU servers that the job uses.
std::set<ServerId> Stragglers::CpuServers() const {
  std::set<ServerId> servers;
  for (const ServerId id : job_.current.plan_servers) {
    const Server* const server = scope_.fleet.Find(id);
    if (server != nullptr && !server->colocated() && !server->draining) servers.insert(id);
  }
  return servers;
}

// The servers whose times are compared: the CPU servers. A node's link to a colocated server
// carries less than a link to a CPU server, so it is busy for less of the same round. The time of a
// server that has more than its share, since partitions are whole, says less.
std::map<ServerId, double> Stragglers::Weights() const {
  std::map<ServerId, double> weights;
  const PlannerJob view = ViewOf(job_, scope_.fleet, scope_.jobs);
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

void Stragglers::RaiseSpeeds() {
  if (job_.speeds.empty()) return;
  std::erase_if(job_.speeds,
                [this](const auto& speed) { return scope_.fleet.Find(speed.first) == nullptr; });
  std::set<ServerId> servers;
  for (const auto& [id, server] : scope_.fleet.servers()) {
    if (!server.colocated() && !server.draining) servers.insert(id);
  }
  if (!CountFastestInFull(job_, servers)) return;
  job_.current.rebalance = PlanReason::kPace;
  job_.current.pace.StartOver(scope_.changes.now());
}

void Stragglers::Follow(bool react) {
  RaiseSpeeds();
  JobGeneration& current = job_.current;
  if (!react || current.state != v1::READY) return;
  if (current.change.under_way()) return current.pace.StartOver(scope_.changes.now());
  if (!current.pace.HasNews()) return;
  std::set<NodeId> nodes;
  for (const auto& [rank, node] : job_.nodes) {
    if (job_.TakesPart(node)) nodes.insert(rank);
  }
  const std::set<ServerId> servers = CpuServers();
  std::set<ServerId> reduced;
  for (const ServerId server : servers) {
    if (job_.SpeedOf(server) < 1) reduced.insert(server);
  }
  const auto deviations = current.pace.Evaluate(scope_.changes.now(), nodes, Weights(), reduced);
  if (!deviations) return;
  // A single server at a time: a change to it changes the others' times.
  for (const Pace::Deviation& deviation : *deviations) {
    if (FollowDeviation(deviation, servers)) return;
  }
}

// False if nothing has changed.
bool Stragglers::FollowDeviation(const Pace::Deviation& deviation,
                                 const std::set<ServerId>& servers) {
  const ServerId server = deviation.server;
  if (!servers.contains(server)) return false;
  const std::string name = NameOf(*scope_.fleet.Find(server));
  if (deviation.trial) {
    if (!Try(server, servers)) return false;
    scope_.changes.Note(
        event_kind::kPlanned, job_.name,
        absl::StrFormat("%s is not slower than the others with what it has to do for job '%s': it "
                        "counts with %.0f %% of its bandwidth on trial",
                        name, job_.name, 100 * job_.SpeedOf(server)));
    return true;
  }
  const double speed = job_.SpeedOf(server);
  if (!SetSpeed(server, speed / StepFor(speed, deviation.ratio), servers)) return false;
  scope_.changes.Note(
      event_kind::kPlanned, job_.name,
      absl::StrFormat("%s is at work for job '%s' %.2f times as long as the others: it counts with "
                      "%.0f %% of its bandwidth for that job from now on",
                      name, job_.name, deviation.ratio, 100 * job_.SpeedOf(server)));
  return true;
}

// Tries the server with the least speed that moves a partition to it.
bool Stragglers::Try(ServerId server, const std::set<ServerId>& servers) {
  for (double speed = job_.SpeedOf(server); speed < 1;) {
    speed = std::min(speed * kTrial, 1.0);
    if (SetSpeed(server, speed, servers)) return true;
  }
  return false;
}

// False if nothing would move, because partitions are whole: then the speeds stay as they are.
bool Stragglers::SetSpeed(ServerId server, double speed, const std::set<ServerId>& servers) {
  const std::map<ServerId, double> former = job_.speeds;
  job_.speeds[server] = std::max(speed, kLeastSpeed);
  CountFastestInFull(job_, servers);
  std::erase_if(job_.speeds, [](const auto& other) { return other.second >= 1; });
  const std::vector<Participants> sets = SetsOf(job_);
  const bool moves = std::any_of(sets.begin(), sets.end(), [this](const Participants& set) {
    const auto planned = PlanMoves(PublishedPartitionsOf(job_, set).partitions,
                                   ViewOf(job_, scope_.fleet, scope_.jobs, set));
    return planned.ok() && !planned->empty();
  });
  if (!moves) {
    job_.speeds = former;
    return false;
  }
  job_.current.rebalance = PlanReason::kPace;
  job_.current.pace.StartOver(scope_.changes.now());
  return true;
}

}  // namespace addend
