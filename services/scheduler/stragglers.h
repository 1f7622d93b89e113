// Stragglers: CPU servers that have become slow, or fast again, get the share that they can sum in
// the time that the other servers need. Acts on a job during an event (job_scope.h).
#pragma once

#include <map>
#include <set>

#include "services/scheduler/job_scope.h"

namespace addend {

// Takes the times that the node's heartbeat reports into the job's pace.
void TakePaces(absl::Time now, NodeId node, const v1::HeartbeatRequest& beat, Job* job);
// The least speed with which a job counts a server. A server that is not named counts in full for
// all jobs.
std::map<ServerId, double> LowestSpeeds(const Jobs& jobs);

class Stragglers {
 public:
  explicit Stragglers(const JobScope& scope) : job_(scope.job), scope_(scope) {}

  // Raises the speeds if the fastest server has gone. `react`: also follows the measured times.
  void Follow(bool react);

 private:
  std::set<ServerId> CpuServers() const;
  std::map<ServerId, double> Weights() const;
  void RaiseSpeeds();
  bool FollowDeviation(const Pace::Deviation& deviation, const std::set<ServerId>& servers);
  bool SetSpeed(ServerId server, double speed, const std::set<ServerId>& servers);
  bool Try(ServerId server, const std::set<ServerId>& servers);

  Job& job_;
  const JobScope scope_;
};

}  // namespace addend
