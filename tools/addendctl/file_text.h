// Reads the files that options name.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace addend {

// The file's text. "-": standard input. InvalidArgument names the option and the file: it cannot be
// read, or has more than `most` bytes.
absl::StatusOr<std::string> ReadFileText(const char* option, const std::string& file, size_t most);

}  // namespace addend
