// The options of addend-summation: one declared table (options.cc), checked as a whole here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "lib/options/host_port.h"
#include "lib/server/machine_options.h"

namespace addend {

struct SummationOptions {
  MachineOptions machine;
  HostPort listen;
  HostPort data_listen;
  HostPort http;
  std::optional<HostPort> health_listen;
  uint32_t shards = 1;
  uint64_t memory_limit_bytes = 0;
  uint64_t job_memory_limit_bytes = 0;  // 0: no limit
  absl::Duration drain_timeout;
  std::string port_file;
  std::string join_proof;  // proof that this process may be a server; empty: it knows no secret
};

// Reads the parsed flags. INVALID_ARGUMENT names the flag.
absl::StatusOr<SummationOptions> ReadSummationOptions();

}  // namespace addend
