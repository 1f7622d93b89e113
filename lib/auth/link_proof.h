// How both ends of a link prove that they know the node's token, without sending it. Each sends a
// number that the other has never seen, and signs both: what was heard on one link is worth nothing
// on another. docs/wire-format.md has the frames. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "lib/auth/secret.h"
#include "lib/auth/token.h"
#include "lib/base/ids.h"

namespace addend::auth {

// What a HELLO carries: when the node's token expires, and the node's number.
struct Opening {
  int64_t expires_unix_s = 0;
  Secret nonce{};
};
inline constexpr size_t kOpeningBytes = 8 + kSecretBytes;
std::array<std::byte, kOpeningBytes> Encode(const Opening& opening);
// Nothing: not so many bytes.
std::optional<Opening> DecodeOpening(Bytes bytes);

// What the two ends agree on.
struct LinkTerms {
  Claim claim;
  Incarnation node;    // as the node says
  Incarnation server;  // as the server says
  uint32_t shard = 0;
  bool encrypt = false;  // the link from here on, as the node wishes
  Secret node_nonce{};   // zeros where only the node proves itself
  Secret server_nonce{};
};

enum class Side { kNode, kServer };
// HMAC-SHA256(token, "addend node 1" or "addend server 1" | terms in the order of the struct).
Secret ProofOf(Side side, const Secret& token, const LinkTerms& terms);

// With which this side's words on this link are encrypted: HMAC-SHA256(token, "addend node key 1"
// or "addend server key 1" | the same terms).
Secret KeyOf(Side side, const Secret& token, const LinkTerms& terms);

}  // namespace addend::auth
