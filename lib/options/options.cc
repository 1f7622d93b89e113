#include "lib/options/options.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <string_view>

#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "lib/base/failure.h"
#include "lib/base/fd.h"
#include "lib/base/log.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/base/version.h"
#include "lib/options/flag_table.h"

namespace addend {
namespace {

using internal::Dashed;
using internal::EnvironmentName;
using internal::FlagTable;

constexpr std::string_view kOnCommandLine = "on the command line";
constexpr std::string_view kInEnvironment = "in the environment";
constexpr std::string_view kPrefix = "ADDEND_";

// The command line, before any flag is set.
struct CommandLine {
  struct Given {
    std::string value;
    std::string written;
  };
  std::map<std::string, Given> values;  // by the flag's name; the last value counts
  std::vector<std::string> positional;
  bool help = false;
  bool version = false;
  bool print_config = false;
};

absl::Status UnknownFlag(const Program& program, const FlagTable& table, std::string_view dashes,
                         std::string_view name) {
  const std::string nearest = table.Nearest(name);
  const std::string advice = nearest.empty()
                                 ? absl::StrFormat("%s --help lists the flags", program.name)
                                 : absl::StrFormat("did you mean --%s?", Dashed(nearest));
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s%s on the command line is not a flag of %s: %s", dashes, name, program.name, advice));
}

// Handles --help and similar flags; false if `name` is another flag.
bool TakeBuiltin(std::string_view name, CommandLine* result) {
  const std::string wanted = internal::SnakeCase(name);
  if (wanted == "help") return result->help = true;
  if (wanted == "version") return result->version = true;
  if (wanted == "print_config") return result->print_config = true;
  return false;
}

// Handles a "--..." argument; `next` is the argument after it, or null. True if `next` was its
// value.
absl::StatusOr<bool> TakeFlag(const Program& program, const FlagTable& table, std::string_view text,
                              const char* next, CommandLine* result) {
  const std::string written = absl::StrFormat("--%s", text);
  const size_t equals = text.find('=');
  const std::string_view name = text.substr(0, equals);
  const bool has_value = equals != std::string_view::npos;
  const absl::CommandLineFlag* flag = table.Find(name);
  if (flag == nullptr) {
    if (!has_value && TakeBuiltin(name, result)) return false;
    const absl::CommandLineFlag* negated =
        name.substr(0, 2) == "no" && !has_value ? table.Find(name.substr(2)) : nullptr;
    if (negated == nullptr || !internal::IsBool(*negated))
      return UnknownFlag(program, table, "--", name);
    result->values[std::string(ToStd(negated->Name()))] = {"false", written};
    return false;
  }
  CommandLine::Given& given = result->values[std::string(ToStd(flag->Name()))];
  if (has_value) {
    given = {std::string(text.substr(equals + 1)), written};
    return false;
  }
  if (internal::IsBool(*flag)) {
    given = {"true", written};
    return false;
  }
  if (next == nullptr) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--%s on the command line has no value: write --%s=VALUE", name, Dashed(name)));
  }
  given = {next, absl::StrFormat("--%s %s", name, next)};
  return true;
}

absl::StatusOr<CommandLine> ReadCommandLine(const Program& program, const FlagTable& table,
                                            int argc, char** argv) {
  CommandLine result;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--") {
      result.positional.insert(result.positional.end(), argv + i + 1, argv + argc);
      break;
    }
    if (argument == "-h") {
      result.help = true;
    } else if (argument.substr(0, 2) == "--") {
      const char* next = i + 1 < argc ? argv[i + 1] : nullptr;
      ADDEND_ASSIGN_OR_RETURN(const bool took_next,
                              TakeFlag(program, table, argument.substr(2), next, &result));
      if (took_next) ++i;
    } else if (argument.size() > 1 && argument.front() == '-') {
      return UnknownFlag(program, table, "-", argument.substr(1));
    } else {
      result.positional.emplace_back(argument);
    }
    if (result.help || result.version) break;  // answers even if further arguments are wrong
  }
  return result;
}

// Looks for --log-format by hand: messages about other flags must use it already. A wrong value is
// reported later.
bool WantsJson(const FlagTable& table, int argc, char** argv) {
  const absl::CommandLineFlag* const flag = table.Find("log_format");
  if (flag == nullptr) return false;
  const char* const set = ::getenv(EnvironmentName(ToStd(flag->Name())).c_str());
  std::string_view value = set != nullptr ? set : "";
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const size_t equals = argument.find('=');
    if (argument.substr(0, 2) != "--" || table.Find(argument.substr(2, equals - 2)) != flag)
      continue;
    if (equals != std::string_view::npos) {
      value = argument.substr(equals + 1);
    } else if (i + 1 < argc) {
      value = argv[i + 1];
    }
  }
  return value == "json";
}

// "addend-agent" is "agent" in the log.
std::string NameInLog(const Program& program) {
  const size_t dash = program.name.find('-');
  return dash == std::string::npos ? program.name : program.name.substr(dash + 1);
}

// All ADDEND_* variables that are not empty.
std::map<std::string, std::string> ReadEnvironment() {
  std::map<std::string, std::string> result;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (text.substr(0, kPrefix.size()) != kPrefix || equals == std::string_view::npos) continue;
    if (equals + 1 < text.size()) result.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return result;
}

// Unknown variables may belong to other programs (trainers and services share their environment,
// and Kubernetes adds its own), so only variables that look misspelt cause a warning.
void WarnOfMisspeltVariables(const Program& program, const FlagTable& table,
                             const std::map<std::string, std::string>& environment) {
  for (const auto& [variable, value] : environment) {
    std::string name = variable.substr(kPrefix.size());
    for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (table.Find(name) != nullptr) continue;
    const std::string nearest = table.Nearest(name);
    if (nearest.empty() || environment.count(EnvironmentName(nearest)) != 0) continue;
    PrintLine(program.name, spdlog::level::warn,
              absl::StrFormat("%s in the environment has no effect; did you mean %s?", variable,
                              EnvironmentName(nearest)));
  }
}

void PrintHelp(const Program& program, const FlagTable& table) {
  absl::PrintF("%s %s\n%s\n\n", program.name, Version(), program.summary);
  absl::PrintF("Flags (also read from the environment: --some-flag is ADDEND_SOME_FLAG):\n");
  for (const auto& [name, flag] : table.flags()) {
    absl::PrintF("  --%s=%s\n      %s\n", Dashed(name), flag->DefaultValue(), flag->Help());
  }
  absl::PrintF("  --help, --version, --print-config\n");
  absl::PrintF("      Print this text, the version, or the value and the origin of every flag.\n");
}

// The origin of each flag's value, by the flag's name; a missing flag has its default.
using Origins = std::map<std::string, std::string>;

void PrintConfig(const FlagTable& table, const Origins& origins) {
  for (const auto& [name, flag] : table.flags()) {
    const auto origin = origins.find(name);
    absl::PrintF("%s=%s  # %s\n", Dashed(name), flag->CurrentValue(),
                 origin == origins.end() ? "default" : origin->second);
  }
}

// The first error; the other flags are set all the same, since some say where to report it.
absl::StatusOr<Origins> SetFlags(const FlagTable& table, const CommandLine& command_line,
                                 const std::map<std::string, std::string>& environment) {
  Origins origins;
  absl::Status status;
  for (const auto& [name, flag] : table.flags()) {
    if (const auto given = command_line.values.find(name); given != command_line.values.end()) {
      const auto& [value, written] = given->second;
      status.Update(internal::Set(flag, value, written, kOnCommandLine));
      origins[name] = "command line";
      continue;
    }
    const std::string variable = EnvironmentName(name);
    if (const auto set = environment.find(variable); set != environment.end()) {
      status.Update(internal::Set(flag, set->second,
                                  absl::StrFormat("%s=%s", variable, set->second), kInEnvironment));
      origins[name] = absl::StrFormat("environment %s", variable);
    }
  }
  if (!status.ok()) return status;
  return origins;
}

void WriteTerminationMessage(const std::string& line) {
  const UniqueFd file(::open("/dev/termination-log", O_WRONLY | O_APPEND | O_CLOEXEC));
  if (!file.valid()) return;
  // A failed write cannot be handled here; the same line is on standard error.
  [[maybe_unused]] const ssize_t written = ::write(file.get(), line.data(), line.size());
}

// The usual limit of 1024 open files is for programs that call select(); the hard limit is the
// administrator's.
void UseAllDescriptors() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

absl::StatusOr<Parsed> ParseOptions(const Program& program, int argc, char** argv,
                                    std::vector<std::string>* positional) {
  const FlagTable table;
  if (WantsJson(table, argc, argv)) {
    ADDEND_RETURN_IF_ERROR(InitLogging({.process = NameInLog(program), .format = "json"}));
  }
  auto read = ReadCommandLine(program, table, argc, argv);
  if (!read.ok()) {
    // The environment may say where to report it.
    SetFlags(table, {}, ReadEnvironment()).IgnoreError();
    return read.status();
  }
  CommandLine& command_line = *read;
  if (command_line.help) {
    PrintHelp(program, table);
    return Parsed::kExit;
  }
  if (command_line.version) {
    absl::PrintF("%s %s\n", program.name, Version());
    return Parsed::kExit;
  }
  if (positional != nullptr) {
    *positional = std::move(command_line.positional);
  } else if (!command_line.positional.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "'%s' on the command line is not expected: %s takes only flags (--NAME=VALUE)",
        command_line.positional.front(), program.name));
  }
  const auto environment = ReadEnvironment();
  ADDEND_ASSIGN_OR_RETURN(const Origins origins, SetFlags(table, command_line, environment));
  WarnOfMisspeltVariables(program, table, environment);
  if (!command_line.print_config) return Parsed::kRun;
  PrintConfig(table, origins);
  return Parsed::kExit;
}

int RunProgram(const Program& program, int argc, char** argv,
               absl::FunctionRef<absl::Status()> body, std::vector<std::string>* positional) {
  // a closed peer is an error of the write, and must not end this process
  ::signal(SIGPIPE, SIG_IGN);
  // Abseil as Debian builds it searches gRPC's mutexes for deadlocks, at each lock, which took an
  // eighth of the time of a scheduler with a thousand members.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  UseAllDescriptors();
  const auto parsed = ParseOptions(program, argc, argv, positional);
  absl::Status status = parsed.status();
  if (parsed.ok() && *parsed == Parsed::kRun) status = body();
  const bool asks = std::any_of(argv, argv + argc, [](const std::string_view argument) {
    return argument == "--print-config" || argument == "--print_config";
  });
  if (!parsed.ok() && program.on_wrong_options && !asks) status = program.on_wrong_options(status);
  if (status.ok()) return EXIT_SUCCESS;
  std::fflush(stdout);
  PrintLine(program.name, spdlog::level::critical, Message(status));
  WriteTerminationMessage(absl::StrFormat("%s: %s\n", program.name, Message(status)));
  return ExitCodeOf(status);
}

}  // namespace addend
