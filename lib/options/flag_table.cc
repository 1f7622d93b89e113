#include "lib/options/flag_table.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/flags/reflection.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "lib/base/strings.h"

namespace addend::internal {
namespace {

// The Levenshtein distance: the number of characters to change, insert or remove.
size_t Distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({change, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

template <typename Int>
std::string WholeNumber() {
  return absl::StrFormat("a whole number from %d to %d", std::numeric_limits<Int>::min(),
                         std::numeric_limits<Int>::max());
}

bool IsPlainNumber(std::string_view text) {
  double number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  return error == std::errc() && end == text.data() + text.size() && std::isfinite(number);
}

}  // namespace

FlagTable::FlagTable() {
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    const bool ours = flag->Filename().find("absl/") == std::string::npos;
    if (ours && !flag->IsRetired()) flags_.emplace(std::string(name), flag);
  }
}

absl::CommandLineFlag* FlagTable::Find(std::string_view name) const {
  const auto found = flags_.find(SnakeCase(name));
  return found == flags_.end() ? nullptr : found->second;
}

std::string FlagTable::Nearest(std::string_view name) const {
  const std::string wanted = SnakeCase(name);
  size_t best = std::max<size_t>(1, wanted.size() / 3) + 1;  // names further away do not count
  std::string nearest;
  for (const auto& [candidate, flag] : flags_) {
    const size_t distance = Distance(wanted, candidate);
    if (distance < best) {
      best = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

std::string SnakeCase(std::string_view name) {
  std::string result(name);
  std::replace(result.begin(), result.end(), '-', '_');
  return result;
}

std::string Dashed(std::string_view name) {
  std::string result(name);
  std::replace(result.begin(), result.end(), '_', '-');
  return result;
}

std::string EnvironmentName(std::string_view name) {
  std::string result = "ADDEND_";
  for (const char c : SnakeCase(name)) {
    result += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return result;
}

bool IsBool(const absl::CommandLineFlag& flag) { return flag.IsOfType<bool>(); }

std::string Expected(const absl::CommandLineFlag& flag) {
  if (IsBool(flag)) return "true or false";
  if (flag.IsOfType<int32_t>()) return WholeNumber<int32_t>();
  if (flag.IsOfType<uint32_t>()) return WholeNumber<uint32_t>();
  if (flag.IsOfType<int64_t>()) return WholeNumber<int64_t>();
  if (flag.IsOfType<uint64_t>()) return WholeNumber<uint64_t>();
  if (flag.IsOfType<uint16_t>()) return WholeNumber<uint16_t>();
  if (flag.IsOfType<double>() || flag.IsOfType<float>()) return "a number";
  if (flag.IsOfType<absl::Duration>()) return "a duration such as 500ms, 60s or 5m, or seconds";
  return "";
}

absl::Status Set(absl::CommandLineFlag* flag, std::string_view value, std::string_view written,
                 std::string_view origin) {
  std::string text(value);
  // Abseil wants a unit, but trainers and services share variables such as
  // ADDEND_CONNECT_TIMEOUT=60.
  if (flag->IsOfType<absl::Duration>() && IsPlainNumber(text)) text += "s";
  std::string error;
  if (flag->ParseFrom(text, &error)) return absl::OkStatus();
  const std::string expected = Expected(*flag);
  if (!expected.empty()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s %s is not valid: expected %s", written, origin, expected));
  }
  // Abseil starts with "Illegal value '...' specified for flag '...'; " and ends with the type's
  // own message.
  const size_t own = error.find("'; ");
  if (own != std::string::npos) error = error.substr(own + 3);
  return absl::InvalidArgumentError(
      absl::StrFormat("%s %s is not valid: %s", written, origin, error));
}

}  // namespace addend::internal
