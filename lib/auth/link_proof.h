// The handshake in which both ends of a link prove that they know the node's token, without sending
// it. Each end sends a fresh random number, and signs both numbers: a proof recorded on a link is
// worthless on another link. docs/wire-format.md has the frames. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "lib/auth/secret.h"
#include "lib/auth/token.h"
#include "lib/base/ids.h"

namespace addend::auth {

// The payload of a HELLO: the expiry of the node's token, and the node's nonce.
struct Opening {
  int64_t expires_unix_s = 0;
  Secret nonce{};
};
inline constexpr size_t kOpeningBytes = 8 + kSecretBytes;
std::array<std::byte, kOpeningBytes> Encode(const Opening& opening);
// nullopt: the wrong number of bytes.
std::optional<Opening> DecodeOpening(Bytes bytes);

// The terms of a link, which both ends sign.
struct LinkTerms {
  Claim claim;
  Incarnation node;    // as the node claims
  Incarnation server;  // as the server claims
  uint32_t shard = 0;
  bool encrypt = false;  // the node asks to encrypt the link from here on
  Secret node_nonce{};   // zeros if only the node proves itself
  Secret server_nonce{};
};

enum class Side { kNode, kServer };
// HMAC-SHA256(token, "addend node 1" or "addend server 1" | terms in the order of the struct).
Secret ProofOf(Side side, const Secret& token, const LinkTerms& terms);

// The key that encrypts this side's direction of the link: HMAC-SHA256(token, "addend node key 1"
// or "addend server key 1" | the same terms).
Secret KeyOf(Side side, const Secret& token, const LinkTerms& terms);

}  // namespace addend::auth
