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
// it. Used only from the thread that started it: to the kernel, the end of that thread is the
// parent's death.
class ChildProcess {
 public:
  struct Command {
    std::string name{};                                // the name in messages: "agent 0"
    std::vector<std::string> words;                    // words[0] is the program's path
    std::map<std::string, std::string> environment{};  // added to this process's environment
    std::string log;  // the file for standard error, and for output unless `inherit_output`
    bool inherit_output = false;
  };

  static absl::StatusOr<ChildProcess> Start(Command command);
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) = delete;
  ~ChildProcess();

  // Returns the exit status (128 + number for a signal) once the child has ended. Never blocks.
  std::optional<int> Poll();
  // Returns an error that quotes the log, for a child that ended with a status other than 0.
  absl::Status Failure() const;
  const std::string& name() const { return command_.name; }

 private:
  ChildProcess(Command command, pid_t pid) : command_(std::move(command)), pid_(pid) {}

  Command command_;
  pid_t pid_ = -1;  // -1: moved from, or reaped
  std::optional<int> status_;
};

}  // namespace addend
