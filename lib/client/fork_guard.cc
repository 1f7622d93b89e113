// The handlers of fork(): they hold the locks of the objects and of the descriptors over the fork,
// and close the guarded descriptors in the child.
#include "lib/client/fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "lib/client/objects.h"

namespace addend::client {
namespace {

struct Guard {
  std::mutex mu;
  std::vector<int> fds;  // guarded by mu
};

// Never destroyed: the reader's thread may outlive the static destructors.
Guard& TheGuard() {
  static Guard* const guard = new Guard;
  return *guard;
}

// The order of the two locks is fixed here; no other code holds both.
void BeforeFork() {
  Objects::Get().LockForFork();
  TheGuard().mu.lock();
}

void InParent() {
  TheGuard().mu.unlock();
  Objects::Get().UnlockInParent();
}

void InChild() {
  for (const int fd : TheGuard().fds) ::close(fd);
  TheGuard().fds.clear();
  TheGuard().mu.unlock();
  Objects::Get().UnlockInChild();
}

}  // namespace

bool InstallForkHandlers() {
  static const bool installed = pthread_atfork(BeforeFork, InParent, InChild) == 0;
  return installed;
}

ForkLock::ForkLock() { TheGuard().mu.lock(); }
ForkLock::~ForkLock() { TheGuard().mu.unlock(); }

GuardedFd::GuardedFd(int fd, const ForkLock&) : fd_(fd) { TheGuard().fds.push_back(fd); }

GuardedFd& GuardedFd::operator=(GuardedFd&& other) noexcept {
  if (this != &other) {
    Reset();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void GuardedFd::Reset() {
  if (fd_ < 0) return;
  const ForkLock lock;
  std::vector<int>& fds = TheGuard().fds;
  fds.erase(std::find(fds.begin(), fds.end(), fd_));
  ::close(std::exchange(fd_, -1));
}

}  // namespace addend::client
