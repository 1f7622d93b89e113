// addendctl drain: a CPU server gives what it sums to others.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace addend {

// Asks the scheduler at `scheduler` (host:port) to drain the server, and waits until it has left.
// Returns the text, or one line of JSON. `timeout`: for a call, and to wait.
absl::StatusOr<std::string> DrainServer(const std::string& scheduler, uint32_t server,
                                        absl::Duration timeout, bool json);

}  // namespace addend
