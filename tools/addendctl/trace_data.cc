// Collects the records of all processes, estimates the offset of each clock from the fastest of
// several short calls, and moves all times to the clock of addendctl.
#include "tools/addendctl/trace_data.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/base/utf8.h"
#include "lib/rpc/client.h"
#include "lib/rpc/status.h"
#include "lib/trace/clock.h"
#include "proto/addend/v1/trace.grpc.pb.h"
#include "tools/addendctl/ask.h"

namespace addend {
namespace {

constexpr int kClockSamples = 20;
// Services refuse a trace to a caller with a later deadline (lib/server/trace_service.cc).
constexpr absl::Duration kLongestTrace = absl::Seconds(59);

// The answer of a process.
struct Answer {
  std::string clock;  // the name of the process's clock
  ClockOffset offset;
  std::vector<v1::TensorName> tensors;
  std::vector<v1::PartitionLife> lives;
  std::vector<v1::SumEvent> events;
};

absl::Status AskClock(v1::Trace::Stub* stub, absl::Duration timeout, Answer* answer) {
  std::vector<ClockSample> samples;
  for (int i = 0; i < kClockSamples; ++i) {
    grpc::ClientContext context;
    SetDeadline(&context, timeout);
    v1::GetClockResponse response;
    ClockSample sample;
    sample.asked = TraceNow();
    ADDEND_RETURN_IF_ERROR(FromGrpc(stub->GetClock(&context, {}, &response)));
    sample.answered = TraceNow();
    sample.told = response.now_ns();
    samples.push_back(sample);
    answer->clock = response.clock();
  }
  answer->offset = EstimateOffset(samples);
  return absl::OkStatus();
}

absl::StatusOr<Answer> Ask(const std::string& address, uint64_t job_id, uint64_t rounds,
                           absl::Duration timeout) {
  const auto stub = v1::Trace::NewStub(Dial(address));
  Answer answer;
  ADDEND_RETURN_IF_ERROR(AskClock(stub.get(), timeout, &answer));
  grpc::ClientContext context;
  SetDeadline(&context, std::min(timeout, kLongestTrace));
  v1::GetTraceRequest request;
  request.set_job_id(job_id);
  request.set_rounds(rounds);
  const auto reader = stub->GetTrace(&context, request);
  for (v1::TraceChunk chunk; reader->Read(&chunk);) {
    MakePrintable(&chunk);
    answer.tensors.insert(answer.tensors.end(), chunk.tensors().begin(), chunk.tensors().end());
    answer.lives.insert(answer.lives.end(), chunk.lives().begin(), chunk.lives().end());
    answer.events.insert(answer.events.end(), chunk.events().begin(), chunk.events().end());
  }
  ADDEND_RETURN_IF_ERROR(FromGrpc(reader->Finish()));
  return answer;
}

// Processes on the same clock have the same offset: the best estimate counts for all of them.
void ShareClocks(std::map<std::string, Answer>* answers) {
  std::map<std::string, ClockOffset> best;
  for (const auto& [address, answer] : *answers) {
    const auto [it, first] = best.emplace(answer.clock, answer.offset);
    if (!first && answer.offset.error_ns < it->second.error_ns) it->second = answer.offset;
  }
  for (auto& [address, answer] : *answers) answer.offset = best.at(answer.clock);
}

void ToOurClock(int64_t offset, v1::PartitionLife* life) {
  const auto shift = [offset](uint64_t time) {
    return static_cast<uint64_t>(static_cast<int64_t>(time) - offset);
  };
  life->set_first_call(shift(life->first_call()));
  life->set_last_call(shift(life->last_call()));
  life->set_last_push(shift(life->last_push()));
  life->set_ready(shift(life->ready()));
  life->set_first_out(shift(life->first_out()));
  life->set_last_out(shift(life->last_out()));
  life->set_first_in(shift(life->first_in()));
  life->set_last_in(shift(life->last_in()));
  life->set_delivered(shift(life->delivered()));
}

void ToOurClock(int64_t offset, v1::SumEvent* event) {
  event->set_begin(static_cast<uint64_t>(static_cast<int64_t>(event->begin()) - offset));
  event->set_end(static_cast<uint64_t>(static_cast<int64_t>(event->end()) - offset));
}

absl::StatusOr<const v1::JobStatus*> FindJob(const v1::GetStatusResponse& status,
                                             const std::string& job) {
  std::vector<std::string> names;
  for (const auto& candidate : status.jobs()) {
    if (candidate.name() == OneLine(job) || (job.empty() && status.jobs_size() == 1))
      return &candidate;
    names.push_back("'" + candidate.name() + "'");
  }
  if (job.empty() && !names.empty()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("addendctl trace needs --job=NAME, one of %s", absl::StrJoin(names, ", ")));
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("the scheduler has no job '%s'; it has %s", job,
                      names.empty() ? "none" : absl::StrJoin(names, ", ")));
}

}  // namespace

ClockOffset EstimateOffset(const std::vector<ClockSample>& samples) {
  const auto least = std::min_element(
      samples.begin(), samples.end(),
      [](const auto& a, const auto& b) { return a.answered - a.asked < b.answered - b.asked; });
  if (least == samples.end()) return {};
  const int64_t took = least->answered - least->asked;
  return {.ns = least->told - (least->asked + took / 2), .error_ns = (took + 1) / 2};
}

std::string JobTrace::TensorNamed(uint32_t id) const {
  const auto found = tensors.find(id);
  return found == tensors.end() ? absl::StrFormat("tensor %d", id) : found->second;
}

int64_t JobTrace::ClockErrorNs() const {
  int64_t largest = 0;
  for (const NodeTrace& node : nodes) largest = std::max(largest, node.clock.error_ns);
  for (const ServerTrace& server : servers) largest = std::max(largest, server.clock.error_ns);
  return largest;
}

absl::StatusOr<JobTrace> CollectTrace(const v1::GetStatusResponse& status, const std::string& job,
                                      uint64_t rounds, absl::Duration timeout) {
  ADDEND_ASSIGN_OR_RETURN(const v1::JobStatus* const found, FindJob(status, job));
  JobTrace trace{.job = found->name(),
                 .local_size = std::max(1u, found->settings().local_size()),
                 .t_opt_s = found->t_opt_s(),
                 .nodes = {},
                 .servers = {},
                 .tensors = {},
                 .silent = {}};
  std::set<uint32_t> summing;
  for (const auto& share : found->shares()) summing.insert(share.server_id());
  std::map<std::string, std::string> whom;  // member's name, by address
  for (const auto& node : found->nodes()) {
    whom[node.control_address()] =
        absl::StrFormat("node %d (%s)", node.node_rank(), node.hostname());
  }
  for (const auto& server : status.servers()) {
    if (!summing.contains(server.server_id())) continue;
    whom.emplace(server.control_address(), absl::StrFormat("summation server %d (%s)",
                                                           server.server_id(), server.hostname()));
  }
  std::map<std::string, Answer> answers;
  for (const auto& [address, who] : whom) {
    auto answer = Ask(address, found->job_id(), rounds, timeout);
    if (answer.ok()) {
      answers[address] = *std::move(answer);
    } else {
      trace.silent.push_back(absl::StrFormat("%s: %s", who, Message(answer.status())));
    }
  }
  ShareClocks(&answers);
  for (auto& [address, answer] : answers) {
    for (auto& life : answer.lives) ToOurClock(answer.offset.ns, &life);
    for (auto& event : answer.events) ToOurClock(answer.offset.ns, &event);
    for (const auto& tensor : answer.tensors) trace.tensors[tensor.tensor_id()] = tensor.name();
  }
  for (const auto& node : found->nodes()) {
    const auto answer = answers.find(node.control_address());
    if (answer == answers.end()) continue;
    trace.nodes.push_back({.rank = node.node_rank(),
                           .host = node.hostname(),
                           .clock = answer->second.offset,
                           .lives = std::move(answer->second.lives)});
  }
  for (const auto& server : status.servers()) {
    const auto answer = answers.find(server.control_address());
    if (!summing.contains(server.server_id()) || answer == answers.end()) continue;
    trace.servers.push_back({.id = server.server_id(),
                             .host = server.hostname(),
                             .colocated = server.colocated(),
                             .node = server.node_rank(),
                             .clock = answer->second.offset,
                             .events = std::move(answer->second.events)});
  }
  return trace;
}

}  // namespace addend
