// Bytes that absl::BytesToHexString has written.
#pragma once

#include <charconv>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace addend {

// Two digits for each byte; nullopt for all other text. Abseil's own inverse differs between Debian
// 12 and Debian 13.
inline std::optional<std::string> BytesFromHex(std::string_view digits) {
  if (digits.size() % 2 != 0) return std::nullopt;
  std::string bytes;
  bytes.reserve(digits.size() / 2);
  for (size_t at = 0; at < digits.size(); at += 2) {
    const char* const end = digits.data() + at + 2;
    unsigned char byte = 0;
    const auto [stopped, error] = std::from_chars(end - 2, end, byte, 16);
    if (error != std::errc() || stopped != end) return std::nullopt;
    bytes.push_back(static_cast<char>(byte));
  }
  return bytes;
}

}  // namespace addend
