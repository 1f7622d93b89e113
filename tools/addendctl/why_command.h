// `addendctl why`: names the members for which a job waits, in a sentence, from the roll-call of
// its servers and agents.
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

// The answers of a job's members.
struct RollCall {
  v1::JobStatus job;
  std::map<uint32_t, v1::GetAgentResponse> agents;  // by node rank; agents that answered
  std::vector<v1::OpenRound> rounds;                // rounds open at the servers
};

// The members that keep the job waiting.
struct Waiting {
  std::string sentence;
  std::string tensor;  // empty: no round is open
  uint64_t round = 0;
  double open_s = 0;
  std::vector<uint32_t> nodes;  // nodes that have not pushed, or not declared, the tensor
  std::vector<uint32_t> ranks;  // single ranks of other nodes that have not pushed the tensor
};

// Pure.
Waiting Explain(const RollCall& call);

// Queries the job's agents and servers, each for at most `timeout`. INVALID_ARGUMENT: the job does
// not exist. The text ends with a line feed; JSON: {"job", "state", "waits_for", "tensor", "round",
// "open_s", "nodes", "ranks", "first_nonfinite"}.
absl::StatusOr<std::string> AnswerWhy(const v1::GetStatusResponse& status, const std::string& job,
                                      absl::Duration timeout, bool json);

}  // namespace addend
