// Bytes that prove something: what is random, what is compared, and what is signed. OpenSSL does
// the cryptography.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "lib/base/bytes.h"

namespace addend::auth {

// Of HMAC-SHA256, and of everything that is as hard to guess.
inline constexpr size_t kSecretBytes = 32;
using Secret = std::array<std::byte, kSecretBytes>;

inline Bytes BytesOf(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
inline std::string_view TextOf(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// From the kernel's generator. Ends the process where there is none: what can be guessed is worse.
Secret NewSecret();
// HMAC-SHA256.
Secret Sign(Bytes key, Bytes message);
// Takes the same time wherever the first difference is.
bool Same(Bytes a, Bytes b);

}  // namespace addend::auth
