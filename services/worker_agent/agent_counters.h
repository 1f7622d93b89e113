// Counters since the agent's start: they survive the end of a generation.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lib/base/ids.h"

namespace addend {

// Written on the core loop; `copied_bytes` may be read by any thread.
struct AgentCounters {
  explicit AgentCounters(uint32_t local_size) : nonfinite(local_size, 0) {}

  PlanVersion plan_version;  // the newest that the scheduler has announced
  uint64_t plan_changes = 0;
  uint64_t rounds = 0;              // completed, of all tensors
  uint64_t partitions_out = 0;      // contributions pushed for the first time
  uint64_t contributions_sent = 0;  // repetitions included
  uint64_t direct_bytes = 0;        // of contributions that a NIC was to read from a GPU
  // Payloads on links that copy, without frame headers: raw, and as they were encoded.
  uint64_t contribution_bytes = 0;
  uint64_t contribution_wire_bytes = 0;
  uint64_t result_bytes = 0;
  uint64_t result_wire_bytes = 0;
  uint64_t rdma_fallbacks = 0;
  uint64_t stream_bytes = 0;  // pushed so far: the place of the next tensor in the convoy's stream
  uint64_t spun_us = 0;       // that trainers have looked for results before they slept
  std::map<std::string, uint64_t> failures;  // of generations, by cause
  std::vector<uint64_t> nonfinite;           // partitions, by local rank
  uint64_t nonfinite_results = 0;
  std::atomic<uint64_t> copied_bytes{0};

  // Contributions that were sent again, for whatever reason.
  uint64_t resent() const {
    return contributions_sent > partitions_out ? contributions_sent - partitions_out : 0;
  }
};

}  // namespace addend
