#include "lib/base/log.h"

#include <spdlog/sinks/stdout_sinks.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"

namespace addend {

absl::Status InitLogging(std::string_view process, std::string_view level) {
  const auto parsed = spdlog::level::from_str(std::string(level));
  if (parsed == spdlog::level::off && level != "off") {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--log-level=%s is not a level: use trace, debug, info, warn, error or off", level));
  }
  auto logger = std::make_shared<spdlog::logger>(std::string(process),
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %l [%n] %v");
  logger->set_level(parsed);
  logger->flush_on(spdlog::level::warn);
  spdlog::set_default_logger(logger);
  return absl::OkStatus();
}

void CheckFailed(const char* file, int line, const char* condition, const char* reason) {
  std::fprintf(stderr, "%s:%d: check failed: %s: %s\n", file, line, condition, reason);
  std::abort();
}

}  // namespace addend
