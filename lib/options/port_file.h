// The ports that a service ended up with, for tests and local clusters that let the kernel choose.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"

namespace addend {

// Writes {"grpc":7070,"http":7080,...} to `path` in one step: whoever sees the file sees all of it.
// An empty path does nothing.
absl::Status WritePortFile(const std::string& path, const std::map<std::string, uint16_t>& ports);

}  // namespace addend
