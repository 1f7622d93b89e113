// The settings of addend-verbs, and the messages between its two ends.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace addend::verbs {

using Json = nlohmann::json;

// Chosen at the client; the same at both ends.
struct Settings {
  uint64_t bytes = 0;       // of a payload
  uint32_t entries = 1;     // scatter-gather entries at the sender that make up a payload
  uint32_t depth = 1;       // payloads that the NIC has at a time
  bool unaligned = false;   // no entry, and no payload, starts on a page
  bool loopback = false;    // the server's NIC also carries traffic of that machine to itself
  bool both_ways = false;   // the server sends, too
  double seconds = 0;       // the time for which an end sends, unless `iterations` is set
  uint64_t iterations = 0;  // the number of payloads that an end sends; 0: use `seconds`
};

// InvalidArgument names the flag, its value and the expected values.
absl::Status CheckSettings(const Settings& settings);
Json ToJson(const Settings& settings);
absl::StatusOr<Settings> SettingsFromJson(const Json& json);

// The addresses of an end's queue pair and memory.
struct EndAddress {
  uint32_t queue_pair = 0;
  uint16_t lid = 0;  // of an InfiniBand network; Ethernet uses the GID
  std::string gid;   // 16 bytes
  uint32_t mtu = 0;  // an ibv_mtu
  uint64_t memory = 0;
  uint32_t remote_key = 0;
};
Json ToJson(const EndAddress& address);
absl::StatusOr<EndAddress> EndAddressFromJson(const Json& json);

// The payloads that an end has received.
struct Outcome {
  uint64_t payloads = 0;
  double seconds = 0;      // from the start to the last payload
  double cpu_seconds = 0;  // of the thread that sent and received
};
Json ToJson(const Outcome& outcome);
absl::StatusOr<Outcome> OutcomeFromJson(const Json& json);

}  // namespace addend::verbs
