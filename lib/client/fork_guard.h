// Descriptors that a child of fork() must not keep: a data loader with the agent's socket would
// hide the death of its trainer, and a data loader with a segment's descriptor would keep the
// segment's memory. The child's handler closes them before fork() returns there. (MADV_DONTFORK
// keeps mappings out of the child, see segment.h.)
#pragma once

#include <utility>

namespace addend::client {

// Installs the handlers once per process. Returns false if the memory for them is missing, which
// the caller reports as ADDEND_ERROR_RESOURCES.
bool InstallForkHandlers();

// While a ForkLock exists, no thread of this process forks. A system call that makes a descriptor,
// and the GuardedFd that receives it, belong under the same lock. Not recursive; hold it for
// microseconds.
class ForkLock {
 public:
  ForkLock();
  ~ForkLock();
  ForkLock(const ForkLock&) = delete;
  ForkLock& operator=(const ForkLock&) = delete;
};

// An owned descriptor that does not survive fork(). Any thread may destroy it, but not under a
// ForkLock.
class GuardedFd {
 public:
  GuardedFd() = default;
  // Takes the descriptor; `lock` proves that no fork has happened since the descriptor was made.
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
