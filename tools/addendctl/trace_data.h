// The records of a job's rounds from all its processes, on a common clock.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/addend/v1/scheduler.pb.h"
#include "proto/addend/v1/trace.pb.h"

namespace addend {

// The offset of a process's clock from addendctl's: the true offset is within +- error_ns.
struct ClockOffset {
  int64_t ns = 0;
  int64_t error_ns = 0;
};

// An answer to the question for the time.
struct ClockSample {
  int64_t asked = 0;     // on this process's clock
  int64_t answered = 0;  // on this process's clock
  int64_t told = 0;      // on the other process's clock
};
// Uses the sample with the shortest call: the clock was read at some time between question and
// answer.
ClockOffset EstimateOffset(const std::vector<ClockSample>& samples);

// An agent with its colocated server.
struct NodeTrace {
  uint32_t rank = 0;
  std::string host = {};
  ClockOffset clock = {};
  std::vector<v1::PartitionLife> lives = {};
};
struct ServerTrace {
  uint32_t id = 0;
  std::string host = {};
  bool colocated = false;
  uint32_t node = 0;  // the node of a colocated server
  ClockOffset clock = {};
  std::vector<v1::SumEvent> events = {};
};

// All times are on addendctl's clock.
struct JobTrace {
  std::string job;
  uint32_t local_size = 1;
  double t_opt_s = 0;  // of all tensors; 0: unknown
  std::vector<NodeTrace> nodes;
  std::vector<ServerTrace> servers;
  std::map<uint32_t, std::string> tensors;
  std::vector<std::string> silent;  // members that did not answer, and why

  std::string TensorNamed(uint32_t id) const;
  int64_t ClockErrorNs() const;  // the largest error
};

// Queries every agent of the job and every server that sums for it, each for at most `timeout`.
// INVALID_ARGUMENT: the job does not exist.
absl::StatusOr<JobTrace> CollectTrace(const v1::GetStatusResponse& status, const std::string& job,
                                      uint64_t rounds, absl::Duration timeout);

}  // namespace addend
