// `addendctl why`: whom a job waits for, in one sentence, from the roll-call of its servers and
// agents.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/addend/v1/agent.pb.h"
#include "proto/addend/v1/scheduler.pb.h"
#include "proto/addend/v1/summation.pb.h"

namespace addend {

// What the members of a job have answered.
struct RollCall {
  v1::JobStatus job;
  std::map<uint32_t, v1::GetAgentResponse> agents;  // by node rank; those that have answered
  std::vector<v1::OpenRound> rounds;                // open at the servers
};

// Who keeps the job waiting.
struct Waiting {
  std::string sentence;
  std::string tensor;  // empty: no round is open
  uint64_t round = 0;
  double open_s = 0;
  std::vector<uint32_t> nodes;  // that have not pushed, or not declared, the tensor
  std::vector<uint32_t> ranks;  // single ranks that have not pushed it, of other nodes
};

// Pure.
Waiting Explain(const RollCall& call);

// Asks the job's agents and servers, each for at most `timeout`. INVALID_ARGUMENT: no such job. The
// text ends with a line feed; JSON: {"job", "state", "waits_for", "tensor", "round", "open_s",
// "nodes", "ranks"}.
absl::StatusOr<std::string> AnswerWhy(const v1::GetStatusResponse& status, const std::string& job,
                                      absl::Duration timeout, bool json);

}  // namespace addend
