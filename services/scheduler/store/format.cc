// The version of a store's records.
#include "services/scheduler/store/format.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "lib/base/failure.h"
#include "lib/base/version.h"
#include "proto/addend/v1/scheduler_store.pb.h"
#include "services/scheduler/records.h"

namespace addend {
namespace {

// Stores of before there was a record of it.
constexpr uint32_t kUnnamed = 1;

// 0: the record is damaged.
uint32_t VersionOf(std::span<const StoreEntry> entries) {
  const auto found = std::find_if(entries.begin(), entries.end(), [](const StoreEntry& entry) {
    return entry.first == records::kFormat;
  });
  if (found == entries.end()) return kUnnamed;
  v1::FormatRecord record;
  return record.ParseFromString(found->second) ? record.version() : 0;
}

}  // namespace

absl::Status CheckFormat(std::string_view name, std::span<const StoreEntry> entries) {
  const uint32_t version = VersionOf(entries);
  if (version == 0) {
    return absl::DataLossError(absl::StrFormat(
        "the record '%s' of the store %s cannot be read: move the store away and start the jobs "
        "anew",
        records::kFormat, name));
  }
  if (protocol::kStore.Contains(version)) return absl::OkStatus();
  return MakeFailure(
      FailureKind::kVersion,
      absl::StrFormat("the store %s has version %d of the records, but this scheduler reads "
                      "%s: start a release "
                      "that reads it (docs/operations.md), or name another store with --store",
                      name, version, Describe(protocol::kStore)));
}

std::optional<StoreWrite> FormatToWrite(std::span<const StoreEntry> entries) {
  const auto there = std::find_if(entries.begin(), entries.end(), [](const StoreEntry& entry) {
    return entry.first == records::kFormat;
  });
  v1::FormatRecord record;
  record.set_version(protocol::kStore.newest);
  std::string bytes = record.SerializeAsString();
  if (there != entries.end() && there->second == bytes) return std::nullopt;
  return StoreWrite{records::kFormat, std::move(bytes)};
}

}  // namespace addend
