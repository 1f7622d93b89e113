// The ports that a service has bound, for tests and local clusters that let the kernel choose.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"

namespace addend {

// Writes {"grpc":7070,"http":7080,...} to `path` atomically: a reader never sees a part of the
// file. An empty path does nothing.
absl::Status WritePortFile(const std::string& path, const std::map<std::string, uint16_t>& ports);

}  // namespace addend
