// Encoded payloads: a job is planned for the bytes that its payloads take on the wire, as its nodes
// measure them. Acts on a job during an event (job_scope.h).
#pragma once

#include "services/scheduler/job_scope.h"

namespace addend {

// Takes the counters of the node's heartbeat into the job's measurement.
void TakeWireBytes(NodeId node, const v1::HeartbeatRequest& beat, Job* job);

class Encodings {
 public:
  explicit Encodings(const JobScope& scope) : job_(scope.job), scope_(scope) {}

  // If the measured ratios are new, a change of the plan is due, by the same path as for a slow
  // server.
  void Follow();

 private:
  double RoundBytes() const;

  Job& job_;
  const JobScope scope_;
};

}  // namespace addend
