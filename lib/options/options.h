// The table of options of a binary: Abseil flags, each also readable from the environment.
//
// A binary declares its options in its own options.cc with ABSL_FLAG(type, snake_case_name,
// default, help) and reads them with absl::GetFlag. Command line > environment > default.
// `--data-listen=X` and `--data_listen=X` name the same flag, and so does the environment variable
// ADDEND_DATA_LISTEN; an empty environment variable counts as not set. Booleans: --flag, --noflag,
// --flag=true|false. Durations: 500ms, 60s, or a plain number of seconds. Of repeated flags the
// last counts.
//
// --help, --version and --print-config exist in every binary.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace addend {

struct Program {
  std::string name;  // "addend-agent"
  // Shown by --help: the purpose of the program and its command line; may have several lines.
  std::string summary;
  // Called with the error of options that cannot be read, when all others are set (those of the
  // environment only, if the command line has no form); its result is how the program ends. Null:
  // it ends with the error.
  std::function<absl::Status(const absl::Status& why)> on_wrong_options = nullptr;
};

enum class Parsed {
  kRun,
  kExit,  // --help, --version or --print-config was answered on standard output
};

// Sets all flags of this binary. Must be called once, before any thread starts. InvalidArgument for
// an unknown flag, a bad value or an unexpected positional argument: a sentence that names the
// flag, its origin, the value and the expected values. A positional argument is unexpected if
// `positional` is null. An environment variable that looks like a misspelt ADDEND_<FLAG> causes a
// warning on standard error.
absl::StatusOr<Parsed> ParseOptions(const Program& program, int argc, char** argv,
                                    std::vector<std::string>* positional = nullptr);

// Implements main(): ignores SIGPIPE, parses the options, runs `body` unless the options were
// already answered (--help), and returns the exit status (lib/base/failure.h). Prints a failure
// to standard error as "<name>: <sentence>" (or in JSON, if the program has --log-format=json), and
// writes it as "<name>: <sentence>" to /dev/termination-log, if it exists, where Kubernetes looks
// for it.
int RunProgram(const Program& program, int argc, char** argv,
               absl::FunctionRef<absl::Status()> body,
               std::vector<std::string>* positional = nullptr);

}  // namespace addend
