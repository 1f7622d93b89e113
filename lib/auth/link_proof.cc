#include "lib/auth/link_proof.h"

#include <bit>
#include <cstring>

#include "lib/auth/signed_text.h"

namespace addend::auth {

static_assert(std::endian::native == std::endian::little,
              "openings are written in the machine's order");

std::array<std::byte, kOpeningBytes> Encode(const Opening& opening) {
  std::array<std::byte, kOpeningBytes> bytes;
  std::memcpy(bytes.data(), &opening.expires_unix_s, 8);
  std::memcpy(bytes.data() + 8, opening.nonce.data(), kSecretBytes);
  return bytes;
}

std::optional<Opening> DecodeOpening(Bytes bytes) {
  if (bytes.size() != kOpeningBytes) return std::nullopt;
  Opening opening;
  std::memcpy(&opening.expires_unix_s, bytes.data(), 8);
  std::memcpy(opening.nonce.data(), bytes.data() + 8, kSecretBytes);
  return opening;
}

namespace {

Secret SignTerms(std::string_view label, const Secret& token, const LinkTerms& terms) {
  SignedText text(label);
  text.Add(terms.claim.job.value());
  text.Add(terms.claim.generation.value());
  text.Add(terms.claim.node.value());
  text.Add(static_cast<uint64_t>(terms.claim.expires_unix_s));
  text.Add(terms.node.value());
  text.Add(terms.server.value());
  text.Add(terms.shard);
  text.Add(terms.encrypt);
  text.Add(terms.node_nonce);
  text.Add(terms.server_nonce);
  return Sign(token, text.bytes());
}

}  // namespace

Secret ProofOf(Side side, const Secret& token, const LinkTerms& terms) {
  return SignTerms(side == Side::kNode ? "addend node 1" : "addend server 1", token, terms);
}

Secret KeyOf(Side side, const Secret& token, const LinkTerms& terms) {
  return SignTerms(side == Side::kNode ? "addend node key 1" : "addend server key 1", token, terms);
}

}  // namespace addend::auth
