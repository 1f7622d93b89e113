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

// From the first byte of a HELLO to the last of the proof.
constexpr absl::Duration kHandshakePatience = absl::Seconds(10);

}  // namespace

Sink* Shard::Accept(Link* link, const Transport& transport) {
  links_.push_back(std::make_unique<NodeLink>(this, link, &transport.traits(), send_limits_));
  return links_.back().get();
}

void Shard::AnswerRdma(const RdmaCall& call, std::unique_ptr<rdma::Signals> signals) {
  absl::Status refusal;
  if (rdma_ == nullptr || hung_up_) {
    refusal = rdma::PathFailure(absl::UnavailableError("this server takes no links over RDMA"));
  } else {
    refusal = TokenOf(call.peer, call.terms, auth::BytesOf(call.proof)).status();
  }
  if (refusal.ok()) {
    return rdma_->Answer(call.peer, call.terms.claim.job.value(), call.offer, std::move(signals));
  }
  signals->Say({.ends = std::nullopt, .goodbye = std::move(refusal)});
}

void Shard::HangUp() {
  hung_up_ = true;
  if (rdma_ != nullptr) rdma_->CloseAll(absl::UnavailableError("the server is shutting down"));
}

absl::Status Shard::Refuse(const std::string& peer, Refusal reason, absl::Status why) {
  stats_.links_refused[static_cast<size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
  if (const auto others = refusals_.Next(absl::Now())) {
    spdlog::warn("refused a link from {}: {}{}", peer, Message(why), *others);
  }
  return why;
}

absl::StatusOr<auth::LinkTerms> Shard::TermsFor(const std::string& peer, const FrameHeader& hello,
                                                Bytes opening) {
  const auto opened = auth::DecodeOpening(opening);
  if (!opened.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a HELLO with %d bytes, where a token's expiry and a number make %d",
                        opening.size(), auth::kOpeningBytes));
  }
  if (!jobs_.contains(hello.job)) {
    return Refuse(
        peer, Refusal::kUnknownJob,
        absl::UnauthenticatedError(absl::StrFormat("job %d is not known here", hello.job.value())));
  }
  return auth::LinkTerms{.claim = {.job = hello.job,
                                   .generation = hello.generation,
                                   .node = NodeId(hello.sender),
                                   .expires_unix_s = opened->expires_unix_s},
                         .node = hello.incarnation,
                         .server = identity_->incarnation,
                         .shard = static_cast<uint32_t>(hello.partition.value()),
                         .encrypt = (hello.flags & kFlagEncrypt) != 0,
                         .node_nonce = opened->nonce,
                         .server_nonce = auth::NewSecret()};
}

absl::StatusOr<auth::Secret> Shard::TokenOf(const std::string& peer, const auth::LinkTerms& terms,
                                            Bytes proof) {
  const auto job = jobs_.find(terms.claim.job);
  if (job == jobs_.end()) {
    return Refuse(peer, Refusal::kUnknownJob,
                  absl::UnauthenticatedError(
                      absl::StrFormat("job %d is not known here", terms.claim.job.value())));
  }
  const auth::Secret token = auth::TokenSecret(auth::BytesOf(job->second->spec.key), terms.claim);
  if (!auth::Same(proof, auth::ProofOf(auth::Side::kNode, token, terms))) {
    return Refuse(
        peer, Refusal::kWrongToken,
        absl::UnauthenticatedError(absl::StrFormat(
            "this is not the token of node %d in generation %d of job %d, or not an "
            "answer to this server's challenge",
            terms.claim.node.value(), terms.claim.generation.value(), terms.claim.job.value())));
  }
  if (const absl::Time now = absl::Now(); auth::HasExpired(terms.claim.expires_unix_s, now)) {
    return Refuse(
        peer, Refusal::kExpiredToken,
        absl::UnauthenticatedError(absl::StrFormat(
            "the token of node %d of job %d has expired %d s ago by this machine's clock (clocks "
            "may differ by %s)",
            terms.claim.node.value(), terms.claim.job.value(),
            absl::ToUnixSeconds(now) - terms.claim.expires_unix_s,
            absl::FormatDuration(auth::kClockSkew))));
  }
  return token;
}

absl::StatusOr<ShardJob*> Shard::Admit(NodeLink* link, const auth::Claim& node) {
  ShardJob* const job = jobs_.at(node.job).get();
  // The node will hear of it from the scheduler: it is no mistake of anybody's.
  if (node.generation != job->spec.generation || node.node.value() >= job->spec.num_nodes ||
      job->spec.lost.contains(node.node)) {
    return Refuse(link->link()->peer(), Refusal::kNotMember,
                  WithExitCode(absl::PermissionDeniedError(absl::StrFormat(
                                   "node %d of generation %d does not belong to job %d (any more), "
                                   "which is in generation %d with %d nodes",
                                   node.node.value(), node.generation.value(), node.job.value(),
                                   job->spec.generation.value(), job->spec.num_nodes)),
                               kExitTemporary));
  }
  // A newer link of a node replaces the former one.
  if (NodeLink* former = job->links[node.node.value()]; former != nullptr) {
    former->LeaveJob();
    former->link()->Close(absl::AbortedError("the node has connected anew"));
  }
  job->links[node.node.value()] = link;
  return job;
}

// A token that never comes whole holds a descriptor, and nothing else.
void Shard::CloseStrangers() {
  const absl::Time since = absl::Now() - kHandshakePatience;
  for (const auto& link : links_) {
    if (!link->is_stranger() || link->since() > since) continue;
    link->Dismiss(Refuse(link->link()->peer(), Refusal::kTooLate,
                         absl::DeadlineExceededError("it has not proved in time who it is")));
  }
}

}  // namespace addend
