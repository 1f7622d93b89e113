#include "lib/options/log_options.h"

#include <string>
#include <utility>

#include "absl/flags/flag.h"

ABSL_FLAG(std::string, log_level, "info", "trace, debug, info, warn, error or off");
ABSL_FLAG(std::string, log_format, "text",
          "of the log on standard error: text, or json (an object per line)");

namespace addend {

absl::Status StartLogging(LogOptions log) {
  log.level = absl::GetFlag(FLAGS_log_level);
  log.format = absl::GetFlag(FLAGS_log_format);
  return InitLogging(log);
}

}  // namespace addend
