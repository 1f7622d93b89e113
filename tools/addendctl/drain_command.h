// addendctl drain: a CPU server hands its partitions over to other servers.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace addend {

// Asks the scheduler at `scheduler` (host:port) to drain the server, and waits until it has left.
// Returns the text, or one line of JSON. `secret_file`: the servers' secret; empty if the scheduler
// has no secret. `timeout`: of a call, and of the wait.
absl::StatusOr<std::string> DrainServer(const std::string& scheduler, uint32_t server,
                                        const std::string& secret_file, absl::Duration timeout,
                                        bool json);

}  // namespace addend
