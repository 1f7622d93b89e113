// Logging: spdlog to standard error, one line per event, as text for people or as JSON for
// machines. Nothing is logged for every partition or every round, but at debug level.
#pragma once

#include <spdlog/spdlog.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace addend {

// What every line says about the process that writes it, and how.
struct LogOptions {
  std::string process;                          // "scheduler"
  std::string job = "";                         // of an agent; empty: of none
  std::optional<uint32_t> node = std::nullopt;  // of an agent, its rank in the job
  std::string level = "info";                   // trace, debug, info, warn, error or off
  std::string format = "text";                  // or json
};

// Text: "2026-01-31T12:00:00.123 info [agent 2 of bert] <message>". JSON: an object per line,
// {"time" (RFC 3339, UTC), "level", "process", "job", "node", "message"}, null where there is none.
// To be called before threads start; the last call counts. InvalidArgument names the flag.
absl::Status InitLogging(const LogOptions& options);

// One line on standard error whatever the level is, and before InitLogging too: for the last words
// of a program, and about its options. "<program>: <sentence>", or JSON if that is the format.
void PrintLine(std::string_view program, spdlog::level::level_enum level,
               std::string_view sentence);

}  // namespace addend
