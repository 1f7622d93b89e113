// A child process that does not outlive its parent.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace addend {

// Owns a started program. The kernel kills it when the parent dies; the destructor kills and reaps
// it. Used from the thread that started it: the parent's death is, for the kernel, the end of that
// thread.
class ChildProcess {
 public:
  struct Command {
    std::string name{};                                // for messages: "agent 0"
    std::vector<std::string> words;                    // words[0] is the program's path
    std::map<std::string, std::string> environment{};  // added to this process's own
    std::string log;  // standard error, and output unless `inherit_output`
    bool inherit_output = false;
  };

  static absl::StatusOr<ChildProcess> Start(Command command);
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) = delete;
  ~ChildProcess();

  // The exit status (128 + number for a signal) once it has ended. Never blocks.
  std::optional<int> Poll();
  // An error that quotes the log, for a child that ended with a status other than 0.
  absl::Status Failure() const;
  const std::string& name() const { return command_.name; }

 private:
  ChildProcess(Command command, pid_t pid) : command_(std::move(command)), pid_(pid) {}

  Command command_;
  pid_t pid_ = -1;  // -1: moved from, or reaped
  std::optional<int> status_;
};

}  // namespace addend
