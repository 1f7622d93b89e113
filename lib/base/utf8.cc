#include "lib/base/utf8.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_format.h"

namespace addend {
namespace {

// Returns the bytes of the first character of `text`; 0: it is malformed.
size_t Decode(std::string_view text, uint32_t* point) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const size_t length = lead < 0x80       ? 1
                        : lead >> 5 == 6  ? 2
                        : lead >> 4 == 14 ? 3
                        : lead >> 3 == 30 ? 4
                                          : 0;
  if (length == 0 || length > text.size()) return 0;
  *point = length == 1 ? lead : lead & (0xffu >> (length + 1));
  for (size_t k = 1; k < length; ++k) {
    const auto next = static_cast<unsigned char>(text[k]);
    if (next >> 6 != 2) return 0;
    *point = *point << 6 | (next & 0x3f);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = *point >= 0xd800 && *point < 0xe000;
  return *point < kLeast[length] || *point > 0x10ffff || surrogate ? 0 : length;
}

bool IsControl(uint32_t point) { return point < 0x20 || (point >= 0x7f && point < 0xa0); }

// True for characters that end a line, or turn the direction in which the following text is
// written.
bool IsInvisibleOrder(uint32_t point) {
  return point == 0x061c || point == 0x200e || point == 0x200f ||
         (point >= 0x2028 && point <= 0x202e) || (point >= 0x2066 && point <= 0x2069);
}

std::string Escape(uint32_t point) {
  if (point == '\n') return "\\n";
  if (point == '\r') return "\\r";
  if (point == '\t') return "\\t";
  return point < 0x100 ? absl::StrFormat("\\x%02x", point) : absl::StrFormat("\\u%04x", point);
}

}  // namespace

bool IsUtf8(std::string_view text) {
  uint32_t point = 0;
  while (!text.empty()) {
    const size_t length = Decode(text, &point);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string OneLine(std::string_view text) {
  std::string line;
  line.reserve(text.size());
  while (!text.empty()) {
    uint32_t point = 0;
    const size_t length = Decode(text, &point);
    if (length == 0) {
      line += Escape(static_cast<unsigned char>(text[0]));
    } else if (IsControl(point) || IsInvisibleOrder(point)) {
      line += Escape(point);
    } else {
      line += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return line;
}

std::string Shortened(std::string_view text, size_t most) {
  if (text.size() <= most) return std::string(text);
  constexpr std::string_view kDots = "...";
  size_t end = most - std::min(most, kDots.size());
  while (end > 0 && (static_cast<unsigned char>(text[end]) >> 6) == 2) --end;
  return std::string(text.substr(0, end)).append(kDots);
}

}  // namespace addend
