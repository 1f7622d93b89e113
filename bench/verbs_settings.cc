#include "bench/verbs_settings.h"

#include <optional>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "lib/base/hex.h"
#include "lib/base/status_macros.h"

namespace addend::verbs {
namespace {

constexpr uint64_t kBytesMost = uint64_t{1} << 30;
constexpr uint32_t kEntriesMost = 32, kDepthMost = 1024;
constexpr uint64_t kEntryBytesLeast = 64;  // so that every entry has room for a stamp
constexpr uint64_t kIterationsMost = 1'000'000'000;
constexpr double kSecondsMost = 3600;

// The field of an object that must be there and have the type of `value`.
template <typename T>
bool Read(const Json& json, const char* name, T* value) {
  if (!json.is_object()) return false;
  const auto field = json.find(name);
  if (field == json.end()) return false;
  bool fits = false;
  if constexpr (std::is_same_v<T, bool>) {
    fits = field->is_boolean();
  } else if constexpr (std::is_same_v<T, std::string>) {
    fits = field->is_string();
  } else if constexpr (std::is_floating_point_v<T>) {
    fits = field->is_number();
  } else {
    fits = field->is_number_unsigned();
  }
  if (fits) *value = field->template get<T>();
  return fits;
}

absl::Status NotUnderstood(const char* what, const Json& json) {
  return absl::FailedPreconditionError(absl::StrFormat(
      "the other end is another version: its %s is '%s'", what, json.dump().substr(0, 200)));
}

absl::Status OutOfRange(const char* flag, uint64_t value, uint64_t least, uint64_t most) {
  return absl::InvalidArgumentError(
      absl::StrFormat("--%s=%d is out of range: it is from %d to %d", flag, value, least, most));
}

}  // namespace

absl::Status CheckSettings(const Settings& settings) {
  if (settings.entries < 1 || settings.entries > kEntriesMost) {
    return OutOfRange("entries", settings.entries, 1, kEntriesMost);
  }
  const uint64_t least = kEntryBytesLeast * settings.entries;
  if (settings.bytes < least || settings.bytes > kBytesMost) {
    return OutOfRange("bytes", settings.bytes, least, kBytesMost);
  }
  if (settings.depth < 1 || settings.depth > kDepthMost) {
    return OutOfRange("depth", settings.depth, 1, kDepthMost);
  }
  if (settings.iterations > kIterationsMost) {
    return OutOfRange("iterations", settings.iterations, 0, kIterationsMost);
  }
  if (!(settings.seconds > 0 && settings.seconds <= kSecondsMost)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--seconds=%g is out of range: it is above 0, and at most %g",
                        settings.seconds, kSecondsMost));
  }
  return absl::OkStatus();
}

Json ToJson(const Settings& settings) {
  return {{"bytes", settings.bytes},       {"entries", settings.entries},
          {"depth", settings.depth},       {"unaligned", settings.unaligned},
          {"loopback", settings.loopback}, {"both_ways", settings.both_ways},
          {"seconds", settings.seconds},   {"iterations", settings.iterations}};
}

absl::StatusOr<Settings> SettingsFromJson(const Json& json) {
  Settings settings;
  if (!Read(json, "bytes", &settings.bytes) || !Read(json, "entries", &settings.entries) ||
      !Read(json, "depth", &settings.depth) || !Read(json, "unaligned", &settings.unaligned) ||
      !Read(json, "loopback", &settings.loopback) ||
      !Read(json, "both_ways", &settings.both_ways) || !Read(json, "seconds", &settings.seconds) ||
      !Read(json, "iterations", &settings.iterations)) {
    return NotUnderstood("first message", json);
  }
  ADDEND_RETURN_IF_ERROR(CheckSettings(settings));
  return settings;
}

Json ToJson(const EndAddress& address) {
  return {{"queue_pair", address.queue_pair},
          {"lid", address.lid},
          {"gid", std::string(absl::BytesToHexString(address.gid))},
          {"mtu", address.mtu},
          {"memory", address.memory},
          {"remote_key", address.remote_key}};
}

absl::StatusOr<EndAddress> EndAddressFromJson(const Json& json) {
  EndAddress address;
  std::string gid;
  if (!Read(json, "queue_pair", &address.queue_pair) || !Read(json, "lid", &address.lid) ||
      !Read(json, "gid", &gid) || !Read(json, "mtu", &address.mtu) ||
      !Read(json, "memory", &address.memory) || !Read(json, "remote_key", &address.remote_key) ||
      gid.size() != 32) {
    return NotUnderstood("address", json);
  }
  const std::optional<std::string> bytes = BytesFromHex(gid);
  if (!bytes) return NotUnderstood("address", json);
  address.gid = *bytes;
  return address;
}

Json ToJson(const Outcome& outcome) {
  return {{"payloads", outcome.payloads},
          {"seconds", outcome.seconds},
          {"cpu_seconds", outcome.cpu_seconds}};
}

absl::StatusOr<Outcome> OutcomeFromJson(const Json& json) {
  Outcome outcome;
  if (!Read(json, "payloads", &outcome.payloads) || !Read(json, "seconds", &outcome.seconds) ||
      !Read(json, "cpu_seconds", &outcome.cpu_seconds)) {
    return NotUnderstood("outcome", json);
  }
  return outcome;
}

}  // namespace addend::verbs
