// How a thread waits for a task that another thread's loop runs.
#pragma once

#include <memory>
#include <utility>

#include "lib/base/mutex.h"

namespace addend {

class Completion {
 public:
  void Wait() {
    MutexLock lock(&mu_);
    while (!done_) cv_.Wait(&mu_);
  }
  void Signal() {
    MutexLock lock(&mu_);
    done_ = true;
    cv_.NotifyAll();
  }

 private:
  Mutex mu_;
  CondVar cv_;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
};

// Signals when it is destroyed, also with a task that never ran, so that no thread waits for a
// stopped loop.
class CompletionSignal {
 public:
  explicit CompletionSignal(std::shared_ptr<Completion> completion)
      : completion_(std::move(completion)) {}
  ~CompletionSignal() { completion_->Signal(); }
  CompletionSignal(const CompletionSignal&) = delete;
  CompletionSignal& operator=(const CompletionSignal&) = delete;

 private:
  const std::shared_ptr<Completion> completion_;
};

// Posts `task` to the mailbox and waits until it has run, or has been destroyed without that.
template <typename Mailbox, typename Task>
void RunThrough(Mailbox* mailbox, Task task) {
  // Shared: the waiting thread may return while the loop still holds the mutex.
  auto completion = std::make_shared<Completion>();
  mailbox->PostSurely(
      [task = std::move(task), signal = std::make_unique<CompletionSignal>(completion)]() mutable {
        task();
        signal.reset();
      });
  completion->Wait();
}

}  // namespace addend
