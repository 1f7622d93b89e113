// Random, comparable and signed bytes for proofs. OpenSSL does the cryptography.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "lib/base/bytes.h"

namespace addend::auth {

// The size of HMAC-SHA256, and of all values that must be as hard to guess.
inline constexpr size_t kSecretBytes = 32;
using Secret = std::array<std::byte, kSecretBytes>;

inline Bytes BytesOf(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
inline std::string_view TextOf(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// From the kernel's generator. Ends the process if the generator fails: a guessable secret is
// worse.
Secret NewSecret();
// HMAC-SHA256.
Secret Sign(Bytes key, Bytes message);
// Compares in constant time, wherever the first difference is.
bool Same(Bytes a, Bytes b);

}  // namespace addend::auth
