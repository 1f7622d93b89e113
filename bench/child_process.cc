#include "bench/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "lib/base/failure.h"

namespace addend {
namespace {

constexpr size_t kQuotedBytes = 1500;  // the quoted part of a failed child's log

std::vector<char*> Pointers(std::vector<std::string>* words) {
  std::vector<char*> pointers;
  for (std::string& word : *words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> Environment(const std::map<std::string, std::string>& added) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string name(*entry, std::strcspn(*entry, "="));
    if (!added.contains(name)) all.emplace_back(*entry);
  }
  for (const auto& [name, value] : added) all.push_back(name + "=" + value);
  return all;
}

// Between fork and exec: only calls that are safe after a fork.
[[noreturn]] void RunChild(const ChildProcess::Command& command, char* const* words,
                           char* const* environment, pid_t parent) {
  // The parent handles SIGINT for all: Ctrl-C on the terminal must not reach the children first.
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const int log = open(command.log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  dup2(null, STDIN_FILENO);
  dup2(log, STDERR_FILENO);
  if (!command.inherit_output) dup2(log, STDOUT_FILENO);
  execve(words[0], words, environment);
  dprintf(STDERR_FILENO, "cannot run %s: %s\n", words[0], strerror(errno));
  _exit(127);
}

}  // namespace

absl::StatusOr<ChildProcess> ChildProcess::Start(Command command) {
  std::vector<std::string> environment = Environment(command.environment);
  const std::vector<char*> words = Pointers(&command.words);
  const std::vector<char*> variables = Pointers(&environment);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("cannot start %s: %s", command.name, std::strerror(errno)));
  }
  if (pid == 0) RunChild(command, words.data(), variables.data(), parent);
  return ChildProcess(std::move(command), pid);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : command_(std::move(other.command_)),
      pid_(std::exchange(other.pid_, -1)),
      status_(other.status_) {}

ChildProcess::~ChildProcess() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

std::optional<int> ChildProcess::Poll() {
  int status = 0;
  if (pid_ >= 0 && waitpid(pid_, &status, WNOHANG) == pid_) {
    pid_ = -1;
    status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  return status_;
}

absl::Status ChildProcess::Failure() const {
  std::ifstream file(command_.log);
  std::stringstream text;
  text << file.rdbuf();
  std::string log = text.str();
  if (log.size() > kQuotedBytes) log = "..." + log.substr(log.size() - kQuotedBytes);
  const int status = status_.value_or(0);
  return WithExitStatus(
      absl::AbortedError(
          absl::StrFormat("%s ended with status %d; its log says: %s", command_.name, status, log)),
      status < 128 ? status : TraitsOf(FailureKind::kTemporary).exit_status);
}

}  // namespace addend
