// The checks of a handshake; docs/wire-format.md has its frames.
#include "lib/summation/doorkeeper.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/log.h"
#include "lib/base/strings.h"

namespace addend {

absl::Status Doorkeeper::Refuse(const std::string& peer, Refusal reason, absl::Status why) {
  stats_->links_refused[static_cast<size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
  if (const auto others = refusals_.Next(clocks_.steady())) {
    spdlog::warn("refused a link from {}: {}{}", peer, Message(why), *others);
  }
  return why;
}

absl::Status Doorkeeper::RefuseUnknown(const std::string& peer, JobId job) {
  return Refuse(
      peer, Refusal::kUnknownJob,
      absl::UnauthenticatedError(absl::StrFormat("job %d is not known here", job.value())));
}

absl::Status Doorkeeper::RefuseUnproved(const std::string& peer) {
  return Refuse(
      peer, Refusal::kNoToken,
      absl::UnauthenticatedError("a link begins with a HELLO, and its answer with a PROOF"));
}

// A handshake that never completes holds a descriptor, and nothing else.
absl::Status Doorkeeper::CheckPatience(const std::string& peer, absl::Time since) {
  if (since > clocks_.steady() - kHandshakePatience) return absl::OkStatus();
  return Refuse(peer, Refusal::kTooLate,
                absl::DeadlineExceededError("it has not proved in time who it is"));
}

absl::StatusOr<auth::LinkTerms> Doorkeeper::TermsFor(const std::string& peer,
                                                     const FrameHeader& hello, Bytes opening) {
  const auto opened = auth::DecodeOpening(opening);
  if (!opened.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a HELLO with %d bytes, where a token's expiry and a number make %d",
                        opening.size(), auth::kOpeningBytes));
  }
  if (find_job_(hello.job) == nullptr) return RefuseUnknown(peer, hello.job);
  return auth::LinkTerms{.claim = {.job = hello.job,
                                   .generation = hello.generation,
                                   .node = NodeId(hello.sender),
                                   .expires_unix_s = opened->expires_unix_s},
                         .node = hello.incarnation,
                         .server = server_->incarnation,
                         .shard = static_cast<uint32_t>(hello.partition.value()),
                         .encrypt = (hello.flags & kFlagEncrypt) != 0,
                         .node_nonce = opened->nonce,
                         .server_nonce = auth::NewSecret()};
}

// The token depends on the job's key: the server computes it from the claim, and stores no tokens.
absl::StatusOr<auth::Secret> Doorkeeper::TokenOf(const std::string& peer,
                                                 const auth::LinkTerms& terms, Bytes proof) {
  const auth::Claim& claim = terms.claim;
  const JobShard* const job = find_job_(claim.job);
  if (job == nullptr) return RefuseUnknown(peer, claim.job);
  const auth::Secret token = auth::TokenSecret(auth::BytesOf(job->key()), claim);
  if (!auth::Same(proof, auth::ProofOf(auth::Side::kNode, token, terms))) {
    return Refuse(peer, Refusal::kWrongToken,
                  absl::UnauthenticatedError(absl::StrFormat(
                      "this is not the token of %s in generation %d of job %d, or not an "
                      "answer to this server's challenge",
                      Describe(claim.node), claim.generation.value(), claim.job.value())));
  }
  if (const absl::Time now = clocks_.cluster(); auth::HasExpired(claim.expires_unix_s, now)) {
    return Refuse(peer, Refusal::kExpiredToken,
                  absl::UnauthenticatedError(absl::StrFormat(
                      "the token of %s of job %d has expired %d s ago by the scheduler's clock (it "
                      "may be late by %s)",
                      Describe(claim.node), claim.job.value(),
                      absl::ToUnixSeconds(now) - claim.expires_unix_s,
                      absl::FormatDuration(auth::kClockSkew))));
  }
  return token;
}

absl::StatusOr<JobShard*> Doorkeeper::Admit(NodePort* node, const auth::LinkTerms& terms) {
  const auth::Claim& claim = terms.claim;
  JobShard* const job = find_job_(claim.job);
  if (job == nullptr) return RefuseUnknown(node->peer(), claim.job);
  if (absl::Status admitted = job->Admit(node, claim, terms.encrypt); !admitted.ok()) {
    return Refuse(node->peer(), Refusal::kNotMember, std::move(admitted));
  }
  return job;
}

}  // namespace addend
