// Logging: spdlog to standard error, one line per event, the level from --log-level.
#pragma once

#include <spdlog/spdlog.h>

#include <string_view>

#include "absl/status/status.h"

namespace addend {

// Names the process in every line ("agent 2"). `level`: trace, debug, info, warn, error or off.
absl::Status InitLogging(std::string_view process, std::string_view level);

}  // namespace addend
