// The state as people and metrics are shown it. Reads only; outlived by its parts.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/addend/v1/scheduler.pb.h"
#include "services/scheduler/fleet.h"
#include "services/scheduler/history.h"
#include "services/scheduler/job.h"

namespace addend {

// For metrics.
struct JobSummary {
  std::string name;
  double t_opt_s = 0;          // 0: unknown
  double t_opt_encoded_s = 0;  // the same, of the ratios, which are 1 until measured
  WireRatios ratios = {};
  uint64_t tensor_bytes = 0;
  uint64_t nodes_connected = 0;
  uint64_t nodes_expected = 0;
  uint64_t plan_version = 0;
};
struct ServerSpeed {
  ServerId id;
  std::string hostname;
  double speed = 1;
};
struct MembershipSummary {
  uint64_t cpu_servers = 0;
  uint64_t colocated_servers = 0;
  uint64_t nodes = 0;
  std::map<v1::JobState, uint64_t> jobs;
  uint64_t tensors = 0;
  uint64_t plan_version = 0;  // the highest of all jobs
  double imbalance = 0;       // largest (assigned - target) share of any server in any job
  uint64_t recommended_servers = 0;
  std::vector<JobSummary> by_job;
  std::vector<ServerSpeed> cpu_speeds;
  MembersLost lost;
  std::map<PlanReason, uint64_t> plan_changes;
  std::map<std::string, uint64_t, std::less<>> events;
};

class StatusView {
 public:
  // Of this process.
  struct Process {
    std::string version;  // of this build
    std::string store;    // name of the store
    absl::Time started;
  };

  StatusView(const Process& process, const Fleet& fleet, const Jobs& jobs, const History& history)
      : process_(process), fleet_(fleet), jobs_(jobs), history_(history) {}

  // The status of all jobs.
  v1::GetStatusResponse Status(absl::Time now) const;
  MembershipSummary Summary() const;

  // The part of a status of all jobs that concerns this job.
  static v1::GetStatusResponse OfJob(const v1::GetStatusResponse& all, const std::string& job);

 private:
  v1::JobStatus StatusOf(const Job& job, absl::Time now) const;
  v1::JobStatus WithoutNodes(const Job& job, absl::Time now) const;
  void AddNodes(const Job& job, absl::Time now, v1::JobStatus* status) const;
  void AddShares(const Job& job, v1::JobStatus* status) const;
  uint64_t RecommendedServers() const;

  const Process& process_;
  const Fleet& fleet_;
  const Jobs& jobs_;
  const History& history_;
};

}  // namespace addend
