#include "tools/addendctl/why_command.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "lib/base/status_macros.h"
#include "lib/base/utf8.h"
#include "lib/rpc/client.h"
#include "lib/status/status_json.h"
#include "proto/addend/v1/agent.grpc.pb.h"
#include "proto/addend/v1/summation.grpc.pb.h"
#include "tools/addendctl/ask.h"

namespace addend {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint32_t kRoundsAsked = 10000;

const v1::NodeStatus* FindNode(const v1::JobStatus& job, uint32_t rank) {
  for (const auto& node : job.nodes()) {
    if (node.node_rank() == rank) return &node;
  }
  return nullptr;
}

// Returns the round that has been open for the longest time at any agent.
const v1::OpenTensor* LongestOpen(const RollCall& call) {
  const v1::OpenTensor* longest = nullptr;
  for (const auto& [rank, agent] : call.agents) {
    for (const auto& open : agent.open()) {
      if (longest == nullptr || open.open_s() > longest->open_s()) longest = &open;
    }
  }
  return longest;
}

const v1::OpenTensor* FindOpen(const v1::GetAgentResponse& agent, const v1::OpenTensor& wanted) {
  for (const auto& open : agent.open()) {
    if (open.name() == wanted.name() && open.round() == wanted.round()) return &open;
  }
  return nullptr;
}

// Returns the nodes whose contribution the servers lack in this round; without a plan, the nodes
// whose agents do not have the round open.
std::set<uint32_t> MissingNodes(const RollCall& call, const v1::OpenTensor& tensor) {
  std::set<uint32_t> missing;
  if (tensor.planned()) {
    for (const auto& round : call.rounds) {
      if (round.name() != tensor.name() || round.round() != tensor.round()) continue;
      missing.insert(round.missing().begin(), round.missing().end());
    }
    return missing;
  }
  for (const auto& [rank, agent] : call.agents) {
    if (FindOpen(agent, tensor) == nullptr) missing.insert(rank);
  }
  return missing;
}

std::string DescribeNode(const RollCall& call, uint32_t rank) {
  const v1::NodeStatus* node = FindNode(call.job, rank);
  if (node == nullptr) return absl::StrFormat("node %d, which is not registered", rank);
  std::string text = absl::StrFormat("node %d (on %s", rank, node->hostname());
  text += absl::StrFormat(", last seen %.1f s ago", node->last_seen_s());
  if (!call.agents.contains(rank)) text += ", its agent does not answer";
  if (!node->activity().empty()) text += ": " + node->activity();
  return text + ")";
}

// Returns a partition of the tensor whose owner is changing.
const v1::OpenRound* Unsettled(const RollCall& call, const v1::OpenTensor& open) {
  for (const v1::OpenRound& round : call.rounds) {
    if (round.name() == open.name() && round.state() != "open") return &round;
  }
  return nullptr;
}

RollCall Collect(const v1::GetStatusResponse& status, const v1::JobStatus& job,
                 absl::Duration timeout) {
  RollCall call{.job = job, .agents = {}, .rounds = {}};
  for (const auto& node : job.nodes()) {
    const auto stub = v1::Agent::NewStub(Dial(node.control_address()));
    grpc::ClientContext context;
    SetDeadline(&context, timeout);
    v1::GetAgentResponse response;
    if (stub->GetAgent(&context, {}, &response).ok()) {
      MakePrintable(&response);
      call.agents[node.node_rank()] = std::move(response);
    }
  }
  for (const auto& server : status.servers()) {
    const auto& shares = job.shares();
    if (std::none_of(shares.begin(), shares.end(), [&server](const auto& share) {
          return share.server_id() == server.server_id();
        })) {
      continue;
    }
    const auto stub = v1::Summation::NewStub(Dial(server.control_address()));
    grpc::ClientContext context;
    SetDeadline(&context, timeout);
    v1::RollCallRequest request;
    request.set_job_id(job.job_id());
    request.set_limit(kRoundsAsked);
    v1::RollCallResponse response;
    if (!stub->GetRollCall(&context, request, &response).ok()) continue;
    MakePrintable(&response);
    for (auto& round : *response.mutable_rounds()) call.rounds.push_back(std::move(round));
  }
  return call;
}

}  // namespace

Waiting Explain(const RollCall& call) {
  Waiting waiting;
  const std::string name = absl::StrFormat("job '%s'", call.job.name());
  if (call.job.state() != v1::READY) {
    waiting.sentence =
        absl::StrFormat("%s is %s: %s", name, StateName(call.job.state()), call.job.reason());
    return waiting;
  }
  const v1::OpenTensor* open = LongestOpen(call);
  if (open == nullptr) {
    waiting.sentence = name + " waits for nobody: no round is open";
    return waiting;
  }
  waiting.tensor = open->name();
  waiting.round = open->round();
  waiting.open_s = open->open_s();
  const std::string what = absl::StrFormat("round %d of tensor '%s', open for %.1f s",
                                           open->round(), open->name(), open->open_s());
  std::set<uint32_t> nodes = MissingNodes(call, *open);
  std::vector<std::string> who;
  for (const auto& [rank, agent] : call.agents) {
    const v1::OpenTensor* here = FindOpen(agent, *open);
    if (here == nullptr || here->missing().empty()) continue;
    nodes.erase(rank);
    for (const uint32_t local : here->missing()) {
      waiting.ranks.push_back(rank * call.job.settings().local_size() + local);
      who.push_back(
          absl::StrFormat("rank %d (local rank %d of node %d)", waiting.ranks.back(), local, rank));
    }
  }
  for (const uint32_t rank : nodes) {
    waiting.nodes.push_back(rank);
    who.push_back(DescribeNode(call, rank));
  }
  if (const v1::OpenRound* behind = Unsettled(call, *open); who.empty() && behind != nullptr) {
    waiting.sentence = absl::StrFormat(
        "%s waits for server %d, where partition %d is %s, and that for nodes %s: %s", name,
        behind->server_id(), behind->partition(), behind->state(),
        absl::StrJoin(behind->missing(), ", "), what);
  } else if (who.empty()) {
    waiting.sentence = absl::StrFormat("%s waits for nobody: all have pushed %s", name, what);
  } else {
    waiting.sentence = absl::StrFormat("%s waits for %s: %s", name, absl::StrJoin(who, ", "), what);
  }
  return waiting;
}

absl::StatusOr<std::string> AnswerWhy(const v1::GetStatusResponse& status, const std::string& job,
                                      absl::Duration timeout, bool json) {
  const v1::JobStatus* found = nullptr;
  std::vector<std::string> names;
  for (const auto& candidate : status.jobs()) {
    names.push_back("'" + candidate.name() + "'");
    if (candidate.name() == OneLine(job)) found = &candidate;
  }
  if (found == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the scheduler has no job '%s'; it has %s", job,
                        names.empty() ? "none" : absl::StrJoin(names, ", ")));
  }
  const Waiting waiting = Explain(Collect(status, *found, timeout));
  if (!json) {
    const std::string& origin = found->first_nonfinite();
    return waiting.sentence + "\n" + (origin.empty() ? "" : "NaN: " + origin + "\n");
  }
  Json answer;
  answer["job"] = job;
  answer["state"] = StateName(found->state());
  answer["waits_for"] = waiting.sentence;
  answer["tensor"] = waiting.tensor.empty() ? Json() : Json(waiting.tensor);
  answer["round"] = waiting.tensor.empty() ? Json() : Json(waiting.round);
  answer["open_s"] = waiting.tensor.empty() ? Json() : Json(waiting.open_s);
  answer["nodes"] = waiting.nodes;
  answer["ranks"] = waiting.ranks;
  answer["first_nonfinite"] =
      found->first_nonfinite().empty() ? Json() : Json(found->first_nonfinite());
  return answer.dump() + "\n";
}

}  // namespace addend
