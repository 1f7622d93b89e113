// The text that a signature covers: a label unique to its use, then fields of fixed size, so that
// texts of different meaning differ in their bytes. Internal to lib/auth.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lib/auth/secret.h"

namespace addend::auth {

class SignedText {
 public:
  explicit SignedText(std::string_view label) : text_(label) { text_.push_back('\0'); }
  // Little-endian.
  void Add(uint64_t number) {
    for (int shift = 0; shift < 64; shift += 8) text_.push_back(static_cast<char>(number >> shift));
  }
  void Add(const Secret& secret) { text_.append(TextOf(secret)); }
  Bytes bytes() const { return BytesOf(text_); }

 private:
  std::string text_;
};

}  // namespace addend::auth
