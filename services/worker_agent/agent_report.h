// The agent's state in the words of heartbeats, of addendctl, of metrics and of traces. Reads only;
// a heartbeat alone takes the incidents that the scheduler has not heard of. Belongs to the agent's
// core thread, except Traffic().
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lib/trace/duration_histogram.h"
#include "proto/addend/v1/agent.pb.h"
#include "proto/addend/v1/scheduler.pb.h"
#include "proto/addend/v1/trace.pb.h"
#include "services/worker_agent/journal.h"
#include "services/worker_agent/node_context.h"
#include "services/worker_agent/node_generation.h"

namespace addend {

// For the metrics: since the agent's start.
struct AgentNumbers {
  RoundTimes rounds;
  std::array<DurationHistogram, kPartNames.size()> parts;
  uint64_t partitions_in = 0;
  uint64_t partitions_out = 0;
  uint64_t partitions_resent = 0;
  uint64_t direct_bytes = 0;
  uint64_t bytes_out = 0;
  uint64_t bytes_in = 0;
  uint64_t queued = 0;  // frames that wait for a link
  uint64_t credit_bytes = 0;
  double oldest_open_s = 0;
  uint64_t plan_changes = 0;
  std::map<std::string, uint64_t> failures;  // by cause
  std::vector<uint64_t> nonfinite;           // by local rank
  uint64_t nonfinite_results = 0;
  double spun_s = 0;      // by trainers
  double own_spun_s = 0;  // by the agent's thread
};

class AgentReport {
 public:
  // `context` outlives the report.
  explicit AgentReport(const NodeContext* context) : context_(*context) {}

  // Any thread.
  v1::Traffic Traffic() const;
  // Activity ("2 of 2 trainers connected, 812 rounds"), rounds, departures, incidents, and the time
  // that each server but the colocated server was at work for this node.
  void FillBeat(const NodeGeneration& generation, v1::HeartbeatRequest* beat) const;
  v1::GetAgentResponse Snapshot(const NodeGeneration& generation) const;
  AgentNumbers Numbers(const NodeGeneration& generation) const;
  // The times of the partitions in the last `rounds` rounds of every tensor.
  void FillTrace(JobId job, uint64_t rounds, v1::TraceChunk* chunk) const;

 private:
  std::string Activity(const LocalRanks& ranks) const;
  // "3 rdma, 1 tcp (no RDMA: the server has none)": of the links to other machines.
  static std::string DescribeLinks(const Servers& servers);
  void DescribeOpen(const TensorTable& tensors, v1::GetAgentResponse* response) const;
  void DescribeMemory(const TensorTable& tensors, v1::GetAgentResponse* response) const;

  const NodeContext& context_;
};

}  // namespace addend
