// Membership: who is let in, and the tokens by which servers know a job's nodes. docs/security.md.
#include <string>

#include "absl/strings/str_format.h"
#include "lib/auth/job_proof.h"
#include "lib/auth/token.h"
#include "lib/base/exit_codes.h"
#include "services/scheduler/membership_scope.h"

namespace addend {

absl::Status CheckSecret(const Job& job, uint32_t rank, const std::string& host,
                         std::string_view digest) {
  if (digest == job.secret_digest) return absl::OkStatus();
  const char* const what = digest.empty() ? "brings no secret"
                           : job.secret_digest.empty()
                               ? "brings a secret and the job was created without one"
                               : "brings another secret";
  return WithExitCode(absl::PermissionDeniedError(
                          absl::StrFormat("node %d (on %s) is not let into job '%s', because it "
                                          "%s: give all agents of a job the same "
                                          "--job-secret-file",
                                          rank, host, job.name, what)),
                      kExitBadConfiguration);
}

// A colocated server's job may come after it: then that is checked before it is used.
absl::Status Membership::CheckProof(const v1::RegisterServerRequest& request) const {
  const std::string digest = auth::DigestOf(request.join_proof());
  if (request.colocated_job().empty()) {
    if (digest == options_.servers_digest) return absl::OkStatus();
    return WithExitCode(
        absl::PermissionDeniedError(absl::StrFormat(
            "the summation server on %s %s: give it the --server-secret-file of the scheduler",
            request.hostname(),
            digest.empty() ? "has brought no secret" : "has another secret than this scheduler")),
        kExitBadConfiguration);
  }
  const auto job = job_by_name_.find(request.colocated_job());
  if (job == job_by_name_.end()) return absl::OkStatus();
  return CheckSecret(jobs_.at(job->second), request.colocated_node(), request.hostname(), digest);
}

bool Membership::TokenIsDue(const Job& job, const Node& node) const {
  return node.token_of != job.generation ||
         event_.now - node.token_since >= options_.token_lifetime / 2;
}

v1::NodeToken Membership::NewToken(const Job& job, Node* node) const {
  node->token_of = job.generation;
  node->token_since = event_.now;
  const int64_t expires = absl::ToUnixSeconds(options_.wall_clock() + options_.token_lifetime);
  v1::NodeToken token;
  token.set_expires_unix_s(expires);
  token.set_secret(std::string(
      auth::TextOf(auth::TokenSecret(auth::BytesOf(job.key), {.job = job.id,
                                                              .generation = job.generation,
                                                              .node = node->rank,
                                                              .expires_unix_s = expires}))));
  return token;
}

}  // namespace addend
