// --log-level and --log-format: a definition that all services share.
#pragma once

#include "absl/status/status.h"
#include "lib/base/log.h"

namespace addend {

// InitLogging with the parsed flags, which are declared in log_options.cc. `log`: the process that
// lines name; its level and format are ignored.
absl::Status StartLogging(LogOptions log);

}  // namespace addend
