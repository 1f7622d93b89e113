// The options of addend-summation: one declared table (options.cc), checked as a whole here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "lib/options/host_port.h"

namespace addend {

struct SummationOptions {
  HostPort scheduler;
  HostPort listen;
  HostPort data_listen;
  HostPort http;
  std::optional<HostPort> health_listen;
  std::string advertise;     // never empty: derived from the route to the scheduler if not given
  double bandwidth_bps = 0;  // 0: unknown
  uint32_t shards = 1;
  uint64_t memory_limit_bytes = 0;
  absl::Duration connect_timeout;
  std::string log_level;
  std::string port_file;
};

// Reads the parsed flags. INVALID_ARGUMENT names the flag.
absl::StatusOr<SummationOptions> ReadSummationOptions();

}  // namespace addend
