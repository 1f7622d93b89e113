// --log-level and --log-format: one definition for all services.
#pragma once

#include "absl/status/status.h"
#include "lib/base/log.h"

namespace addend {

// InitLogging with the parsed flags, which are declared in log_options.cc. `who`: what lines say
// about this process; its level and format do not count.
absl::Status StartLogging(LogOptions who);

}  // namespace addend
