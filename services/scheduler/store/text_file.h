// Passwords and tokens in files.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace addend {

// Without white space at both ends. NOT_FOUND with a sentence: it cannot be read, or is empty.
absl::StatusOr<std::string> ReadTextFile(const std::string& path);

}  // namespace addend
