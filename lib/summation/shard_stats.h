// The counters of a shard. Written on the shard's thread, read by any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace addend {

// The reason for which a link was refused.
enum class Refusal { kUnknownJob, kNoToken, kWrongToken, kExpiredToken, kNotMember, kTooLate };
// By Refusal: the label values of the metric.
inline constexpr std::array<std::string_view, 6> kRefusalNames = {
    "unknown_job", "no_token", "wrong_token", "expired_token", "not_a_member", "too_late"};

struct ShardStats {
  std::atomic<uint64_t> partitions_sealed{0};
  std::atomic<uint64_t> payload_bytes_summed{0};
  std::atomic<uint64_t> copied_bytes{0};
  std::atomic<uint64_t> early_kept{0};
  std::atomic<uint64_t> early_dropped{0};
  std::array<std::atomic<uint64_t>, kRefusalNames.size()> links_refused{};  // by Refusal
  std::atomic<uint64_t> updates_applied{0};
  std::atomic<uint64_t> updates_lost{0};
};

// The links of nodes, and the frames that wait in their send queues.
struct LinkCounts {
  std::map<std::string, uint64_t> by_transport;
  uint64_t queued = 0;  // frames
};

}  // namespace addend
