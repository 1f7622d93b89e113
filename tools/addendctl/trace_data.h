// What all processes of a job have noted of its rounds, on one clock.
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

// How far a process's clock is ahead of addendctl's: the truth is within +- error_ns of it.
struct ClockOffset {
  int64_t ns = 0;
  int64_t error_ns = 0;
};

// One answer to "what time is it?".
struct ClockSample {
  int64_t asked = 0;     // on our clock
  int64_t answered = 0;  // on our clock
  int64_t told = 0;      // on theirs
};
// From the sample that took least: its answer was given at some time between asking and answer.
ClockOffset EstimateOffset(const std::vector<ClockSample>& samples);

// An agent, and the colocated server in it.
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
  uint32_t node = 0;  // that it is colocated with
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
  int64_t ClockErrorNs() const;  // the largest
};

// Asks every agent of the job and every server that sums for it, each for at most `timeout`.
// INVALID_ARGUMENT: no such job.
absl::StatusOr<JobTrace> CollectTrace(const v1::GetStatusResponse& status, const std::string& job,
                                      uint64_t rounds, absl::Duration timeout);

}  // namespace addend
