#include "lib/base/log.h"

#include <spdlog/formatter.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "lib/base/status_macros.h"
#include "lib/base/utf8.h"

namespace addend {
namespace {

bool is_json = false;  // written before threads start

class JsonLines final : public spdlog::formatter {
 public:
  explicit JsonLines(LogOptions options) : options_(std::move(options)) {}

  void format(const spdlog::details::log_msg& line, spdlog::memory_buf_t& out) override {
    const auto level = spdlog::level::to_string_view(line.level);
    nlohmann::ordered_json object;
    object["time"] =
        absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromChrono(line.time), absl::UTCTimeZone());
    object["level"] = std::string(level.data(), level.size());
    object["process"] = options_.process;
    object["job"] = nullptr;
    if (!options_.job.empty()) object["job"] = options_.job;
    object["node"] = nullptr;
    if (options_.node) object["node"] = *options_.node;
    object["message"] = std::string(line.payload.data(), line.payload.size());
    // Names chosen by peers may hold any bytes.
    const std::string text =
        object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<JsonLines>(options_);
  }

 private:
  const LogOptions options_;
};

// Names and reasons chosen by peers may hold line feeds and escape sequences.
class TextLines final : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& line, spdlog::memory_buf_t& out) override {
    const std::string message = OneLine({line.payload.data(), line.payload.size()});
    spdlog::details::log_msg shown = line;
    shown.payload = spdlog::string_view_t(message.data(), message.size());
    lines_.format(shown, out);
  }
  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<TextLines>();
  }

 private:
  spdlog::pattern_formatter lines_{"%Y-%m-%dT%H:%M:%S.%e %l [%n] %v"};
};

std::string NameOf(const LogOptions& options) {
  std::string name = options.process;
  if (options.node) name += absl::StrFormat(" %d", *options.node);
  if (!options.job.empty()) name += absl::StrFormat(" of %s", options.job);
  return OneLine(name);
}

}  // namespace

absl::Status InitLogging(const LogOptions& options) {
  const auto level = spdlog::level::from_str(options.level);
  if (level == spdlog::level::off && options.level != "off") {
    return absl::InvalidArgumentError(
        absl::StrFormat("--log-level=%s is not a level: use trace, debug, info, warn, error or off",
                        options.level));
  }
  if (options.format != "text" && options.format != "json") {
    return absl::InvalidArgumentError(
        absl::StrFormat("--log-format=%s is not a format: use text or json", options.format));
  }
  is_json = options.format == "json";
  auto logger = std::make_shared<spdlog::logger>(NameOf(options),
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
  if (is_json) {
    logger->set_formatter(std::make_unique<JsonLines>(options));
  } else {
    logger->set_formatter(std::make_unique<TextLines>());
  }
  logger->set_level(level);
  logger->flush_on(spdlog::level::warn);
  spdlog::set_default_logger(logger);
  return absl::OkStatus();
}

void PrintLine(std::string_view program, spdlog::level::level_enum level,
               std::string_view sentence) {
  if (!is_json) {
    absl::FPrintF(stderr, "%s: %s%s\n", program, level == spdlog::level::warn ? "warning: " : "",
                  OneLine(sentence));
    return;
  }
  const auto logger = spdlog::default_logger();
  const spdlog::details::log_msg line(logger->name(), level,
                                      spdlog::string_view_t(sentence.data(), sentence.size()));
  for (const auto& sink : logger->sinks()) {  // bypasses the logger, which applies its level
    sink->log(line);
    sink->flush();
  }
}

void CheckFailed(const char* file, int line, const char* condition, const char* reason) {
  PrintLine(absl::StrFormat("%s:%d", file, line), spdlog::level::critical,
            absl::StrFormat("check failed: %s: %s", condition, reason));
  std::abort();
}

}  // namespace addend
