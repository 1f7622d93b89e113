// The tokens by which servers know a job's nodes.
#include "services/scheduler/tokens.h"

#include <string>
#include <utility>

#include "lib/auth/secret.h"
#include "lib/auth/token.h"

namespace addend {

Tokens::Tokens(absl::Duration lifetime, std::function<absl::Time()> clock)
    : lifetime_(lifetime), clock_(std::move(clock)) {}

double Tokens::NowUnixS() const { return absl::ToDoubleSeconds(clock_() - absl::UnixEpoch()); }

bool Tokens::IsDue(absl::Time now, const Job& job, const Node& node) const {
  return node.token_of != job.current.number || now - node.token_since >= lifetime_ / 2;
}

v1::NodeToken Tokens::New(absl::Time now, const Job& job, Node* node) const {
  node->token_of = job.current.number;
  node->token_since = now;
  const int64_t expires = absl::ToUnixSeconds(clock_() + lifetime_);
  v1::NodeToken token;
  token.set_expires_unix_s(expires);
  token.set_secret(std::string(
      auth::TextOf(auth::TokenSecret(auth::BytesOf(job.key), {.job = job.id,
                                                              .generation = job.current.number,
                                                              .node = node->rank,
                                                              .expires_unix_s = expires}))));
  return token;
}

}  // namespace addend
