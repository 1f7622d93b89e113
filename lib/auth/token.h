// A node's token: for a while it proves to the job's summation servers that the scheduler has let
// the node in. The scheduler makes it from the job's key, which it shares with the servers alone;
// a server makes the same from what the node claims, so nothing has to be looked up or sent. Pure.
#pragma once

#include "absl/time/time.h"
#include "lib/auth/secret.h"
#include "lib/base/ids.h"

namespace addend::auth {

// What a token is of.
struct Claim {
  JobId job;
  Generation generation;
  NodeId node;
  int64_t expires_unix_s = 0;
};

struct Token {
  int64_t expires_unix_s = 0;
  Secret secret{};  // of the node and its servers; it never travels on the data path
};

// The clocks of two machines may differ by so much.
inline constexpr absl::Duration kClockSkew = absl::Minutes(5);

// HMAC-SHA256(key, "addend token 1" | job | generation | node | expiry), numbers as little-endian
// ones of 64 bits.
Secret TokenSecret(Bytes job_key, const Claim& claim);

// By a server's clock.
inline bool HasExpired(int64_t expires_unix_s, absl::Time now) {
  return absl::ToUnixSeconds(now - kClockSkew) > expires_unix_s;
}

}  // namespace addend::auth
