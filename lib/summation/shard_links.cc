// Who may link to a shard: strangers, who have not said who they are, and the nodes of its jobs.
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "lib/base/exit_codes.h"
#include "lib/base/log.h"
#include "lib/base/strings.h"
#include "lib/summation/shard.h"

namespace addend {
namespace {

// From the first byte of a HELLO to its last.
constexpr absl::Duration kHelloPatience = absl::Seconds(10);

// Takes the same time wherever the first difference is.
bool SameToken(Bytes given, const std::string& wanted) {
  if (given.size() != wanted.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < given.size(); ++i) {
    difference |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(wanted[i]);
  }
  return difference == 0;
}

absl::Status UnknownJob(JobId job) {
  return absl::UnauthenticatedError(
      absl::StrFormat("job %d is not known here, or the token is not its own", job.value()));
}

}  // namespace

Sink* Shard::Accept(Link* link, const Transport& transport) {
  links_.push_back(std::make_unique<NodeLink>(this, link, &transport.traits(), send_limits_));
  return links_.back().get();
}

void Shard::AnswerRdma(const RdmaCall& call, std::unique_ptr<rdma::Signals> signals) {
  const auto job = jobs_.find(call.job);
  absl::Status refusal;
  if (rdma_ == nullptr || hung_up_) {
    refusal = rdma::PathFailure(absl::UnavailableError("this server takes no links over RDMA"));
  } else if (job == jobs_.end() ||
             !SameToken(std::as_bytes(std::span(call.token)), job->second->spec.token)) {
    refusal = Refuse(call.peer, UnknownJob(call.job));
  }
  if (refusal.ok()) return rdma_->Answer(call.peer, call.offer, std::move(signals));
  signals->Say({.ends = std::nullopt, .goodbye = std::move(refusal)});
}

void Shard::HangUp() {
  hung_up_ = true;
  if (rdma_ != nullptr) rdma_->CloseAll(absl::UnavailableError("the server is shutting down"));
}

absl::Status Shard::Refuse(const std::string& peer, absl::Status why) {
  stats_.links_refused.fetch_add(1, std::memory_order_relaxed);
  spdlog::warn("refused a link from {}: {}", peer, Message(why));
  return why;
}

absl::StatusOr<ShardJob*> Shard::Admit(NodeLink* link, const FrameHeader& hello, Bytes token) {
  const auto it = jobs_.find(hello.job);
  if (it == jobs_.end() || !SameToken(token, it->second->spec.token)) {
    return Refuse(link->link()->peer(), UnknownJob(hello.job));
  }
  ShardJob* job = it->second.get();
  // The node will hear of it from the scheduler: it is no mistake of anybody's.
  if (hello.generation != job->spec.generation || hello.sender >= job->spec.num_nodes ||
      job->spec.lost.contains(NodeId(hello.sender))) {
    return Refuse(link->link()->peer(),
                  WithExitCode(absl::FailedPreconditionError(absl::StrFormat(
                                   "node %d of generation %d does not belong to job %d (any more), "
                                   "which is in generation %d with %d nodes",
                                   hello.sender, hello.generation.value(), hello.job.value(),
                                   job->spec.generation.value(), job->spec.num_nodes)),
                               kExitTemporary));
  }
  // A newer link of a node replaces the former one.
  if (NodeLink* former = job->links[hello.sender]; former != nullptr) {
    former->LeaveJob();
    former->link()->Close(absl::AbortedError("the node has connected anew"));
  }
  job->links[hello.sender] = link;
  return job;
}

// A token that never comes whole holds a descriptor, and nothing else.
void Shard::CloseStrangers() {
  const absl::Time since = absl::Now() - kHelloPatience;
  for (const auto& link : links_) {
    if (!link->is_stranger() || link->since() > since) continue;
    link->Dismiss(
        Refuse(link->link()->peer(), absl::DeadlineExceededError("its HELLO did not end in time")));
  }
}

}  // namespace addend
