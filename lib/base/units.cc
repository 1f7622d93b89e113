#include "lib/base/units.h"

#include <cctype>
#include <charconv>
#include <cmath>
#include <iterator>
#include <limits>

#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"

namespace addend {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

constexpr Unit kByteUnits[] = {{"", 1},
                               {"B", 1},
                               {"KB", 1e3},
                               {"MB", 1e6},
                               {"GB", 1e9},
                               {"TB", 1e12},
                               {"KiB", 1024.0},
                               {"MiB", 1024.0 * 1024},
                               {"GiB", 1024.0 * 1024 * 1024},
                               {"TiB", 1024.0 * 1024 * 1024 * 1024}};
constexpr Unit kBitUnits[] = {{"", 1},         {"bps", 1},      {"Kbps", 1e3},   {"Mbps", 1e6},
                              {"Gbps", 1e9},   {"Tbps", 1e12},  {"bit/s", 1},    {"Kbit/s", 1e3},
                              {"Mbit/s", 1e6}, {"Gbit/s", 1e9}, {"Tbit/s", 1e12}};

template <size_t N>
absl::StatusOr<double> ParseWithUnit(std::string_view text, const Unit (&units)[N],
                                     std::string_view expected) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && std::isfinite(number) && number >= 0) {
    const std::string_view suffix(end, text.data() + text.size() - end);
    for (const Unit& unit : units) {
      if (suffix == unit.name) return number * unit.factor;
    }
  }
  return absl::InvalidArgumentError(absl::StrFormat("'%s' is not %s", text, expected));
}

template <size_t N>
std::string FormatWithUnit(double value, const Unit (&units)[N], size_t first, size_t last) {
  size_t best = first;
  for (size_t i = first; i <= last; ++i) {
    if (value >= units[i].factor) best = i;
  }
  return absl::StrFormat("%.4g%s", value / units[best].factor, units[best].name);
}

}  // namespace

absl::StatusOr<uint64_t> ParseByteSize(std::string_view text) {
  ADDEND_ASSIGN_OR_RETURN(const double bytes,
                          ParseWithUnit(text, kByteUnits, "a size such as 4096, 128KiB or 8GiB"));
  if (bytes > 9e18) return absl::InvalidArgumentError(absl::StrFormat("'%s' is too large", text));
  return static_cast<uint64_t>(bytes);
}

std::string FormatByteSize(uint64_t bytes) {
  if (bytes != 0 && bytes % 1024 == 0) {
    return FormatWithUnit(static_cast<double>(bytes), kByteUnits, 6, std::size(kByteUnits) - 1);
  }
  return FormatWithUnit(static_cast<double>(bytes), kByteUnits, 1, 5);
}

absl::StatusOr<double> ParseBandwidth(std::string_view text) {
  return ParseWithUnit(text, kBitUnits, "a bandwidth such as 10Gbps or 400Mbps");
}

std::string FormatBandwidth(double bits_per_second) {
  return FormatWithUnit(bits_per_second, kBitUnits, 1, 5);
}

bool AbslParseFlag(absl::string_view text, ByteSize* size, std::string* error) {
  auto parsed = ParseByteSize(ToStd(text));
  if (!parsed.ok()) {
    *error = std::string(ToStd(parsed.status().message()));
    return false;
  }
  size->bytes = *parsed;
  return true;
}

std::string AbslUnparseFlag(ByteSize size) { return absl::StrFormat("%d", size.bytes); }

bool AbslParseFlag(absl::string_view text, AutoByteSize* size, std::string* error) {
  if (text == "auto") {
    size->bytes = 0;
    return true;
  }
  ByteSize parsed;
  if (!AbslParseFlag(text, &parsed, error)) return false;
  if (parsed.bytes == 0) {
    *error = "must be at least 1 byte, or auto";
    return false;
  }
  size->bytes = parsed.bytes;
  return true;
}

std::string AbslUnparseFlag(AutoByteSize size) {
  return size.bytes == 0 ? "auto" : AbslUnparseFlag(ByteSize{size.bytes});
}

bool AbslParseFlag(absl::string_view text, Bandwidth* bandwidth, std::string* error) {
  auto parsed = ParseBandwidth(ToStd(text));
  if (!parsed.ok()) {
    *error = std::string(ToStd(parsed.status().message()));
    return false;
  }
  bandwidth->bits_per_second = *parsed;
  return true;
}

std::string AbslUnparseFlag(Bandwidth bandwidth) {
  return absl::StrFormat("%.17g", bandwidth.bits_per_second);
}

}  // namespace addend
