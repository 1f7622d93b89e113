// Values of any size, in parts.
#include "services/scheduler/store/value_parts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"

namespace addend {
namespace {

// No record's key has it (services/scheduler/record_keys.h).
constexpr char kSeparator = '#';

// The first part has the value's own key.
std::string PartKey(const std::string& key, size_t part) {
  return part == 0 ? key : absl::StrFormat("%s%c%06d", key, kSeparator, part);
}

}  // namespace

std::vector<StoreWrite> ValueParts::Split(const StoreWrite& write) {
  const auto had = parts_.find(write.key);
  const size_t former = had == parts_.end() ? 1 : had->second;
  if (had != parts_.end()) parts_.erase(had);

  std::vector<StoreWrite> writes;
  if (write.value.has_value()) {
    const std::string& value = *write.value;
    for (size_t at = 0; at == 0 || at < value.size(); at += most_bytes_) {
      writes.push_back({PartKey(write.key, writes.size()), value.substr(at, most_bytes_)});
    }
    if (writes.size() > 1) parts_[write.key] = writes.size();
  } else {
    writes.push_back({write.key, std::nullopt});
  }
  for (size_t part = writes.size(); part < former; ++part) {
    writes.push_back({PartKey(write.key, part), std::nullopt});
  }
  return writes;
}

absl::StatusOr<std::vector<StoreEntry>> ValueParts::Join(std::string_view store,
                                                         std::vector<StoreEntry> entries) {
  parts_.clear();
  std::vector<StoreEntry> joined;
  for (auto& [key, value] : entries) {
    const size_t separator = key.find(kSeparator);
    if (separator == std::string::npos) {
      joined.emplace_back(std::move(key), std::move(value));
      continue;
    }
    const std::string whole = key.substr(0, separator);
    const auto known = parts_.find(whole);
    const size_t next = known == parts_.end() ? 1 : known->second;
    if (joined.empty() || joined.back().first != whole || key != PartKey(whole, next)) {
      return absl::DataLossError(absl::StrFormat(
          "%s: the key '%s' is a part of a value whose part before it is missing", store, key));
    }
    joined.back().second += value;
    parts_[whole] = next + 1;
  }
  return joined;
}

}  // namespace addend
