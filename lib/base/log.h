// Logging: spdlog to standard error, a line per event, as text for people or as JSON for machines.
// A line for every partition or every round is logged at debug level only.
#pragma once

#include <spdlog/spdlog.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace addend {

// The process that every line names, and the format of lines.
struct LogOptions {
  std::string process;                          // "scheduler"
  std::string job = "";                         // of an agent; empty: no job
  std::optional<uint32_t> node = std::nullopt;  // of an agent, its rank in the job
  std::string level = "info";                   // trace, debug, info, warn, error or off
  std::string format = "text";                  // or json
};

// Text: "2026-01-31T12:00:00.123 info [agent 2 of bert] <message>", control characters escaped, so
// that an event is a single line, whatever text a peer has sent. JSON: an object per line, {"time"
// (RFC 3339, UTC), "level", "process", "job", "node", "message"}, null for an absent value. Called
// before threads start; the last call counts. InvalidArgument names the flag.
absl::Status InitLogging(const LogOptions& options);

// Prints a line on standard error whatever the level is, also before InitLogging: for a program's
// last message, and for messages about its options. "<program>: <sentence>", or JSON in that
// format.
void PrintLine(std::string_view program, spdlog::level::level_enum level,
               std::string_view sentence);

}  // namespace addend
