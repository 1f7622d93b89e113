// A node's token: for a limited time it proves to the job's summation servers that the scheduler
// has admitted the node. The scheduler makes it from the job's key, which only the scheduler and
// the servers share. A server computes the same token from the node's claim, without a look-up or a
// message. Pure.
#pragma once

#include "absl/time/time.h"
#include "lib/auth/secret.h"
#include "lib/base/ids.h"

namespace addend::auth {

// The claim that a token proves.
struct Claim {
  JobId job;
  Generation generation;
  NodeId node;
  int64_t expires_unix_s = 0;
};

struct Token {
  int64_t expires_unix_s = 0;
  Secret secret{};  // known to the node and its servers; never sent on the data path
};

// The tolerated error of the scheduler's time as a server knows it.
inline constexpr absl::Duration kClockSkew = absl::Minutes(5);

// HMAC-SHA256(key, "addend token 1" | job | generation | node | expiry), numbers little-endian and
// of 64 bits.
Secret TokenSecret(Bytes job_key, const Claim& claim);

// By the scheduler's clock, as a server knows it (ClusterNow()).
inline bool HasExpired(int64_t expires_unix_s, absl::Time now) {
  return absl::ToUnixSeconds(now - kClockSkew) > expires_unix_s;
}

}  // namespace addend::auth
