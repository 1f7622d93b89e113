// Descriptors that a child of fork() must not keep: a data loader that held the agent's socket
// would hide the death of its trainer, and one that held a segment would keep its memory. The
// child's handler closes them before fork() returns there. (A mapping is kept out of the child by
// MADV_DONTFORK, see segment.h.)
#pragma once

#include <utility>

namespace addend::client {

// Installs the handlers once per process; ADDEND_ERROR_RESOURCES is the only failure there is
// (false).
bool InstallForkHandlers();

// While one lives, no thread of this process forks. A system call that makes a descriptor, and the
// GuardedFd that receives it, belong under one lock. Not recursive; hold it for microseconds.
class ForkLock {
 public:
  ForkLock();
  ~ForkLock();
  ForkLock(const ForkLock&) = delete;
  ForkLock& operator=(const ForkLock&) = delete;
};

// An owned descriptor that does not survive fork(). Any thread may destroy it, not under ForkLock.
class GuardedFd {
 public:
  GuardedFd() = default;
  // Takes the descriptor; `lock` is the proof that no fork happened since it was made.
  GuardedFd(int fd, const ForkLock& lock);
  GuardedFd(GuardedFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  GuardedFd& operator=(GuardedFd&& other) noexcept;
  ~GuardedFd() { Reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void Reset();

 private:
  int fd_ = -1;
};

}  // namespace addend::client
