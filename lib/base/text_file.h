// Small files that hold a text: secrets, passwords, tokens. Any thread.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace addend {

// Without white space at its end. NOT_FOUND: "'PATH' cannot be read: REASON".
absl::StatusOr<std::string> ReadTextFile(const std::string& path);

}  // namespace addend
