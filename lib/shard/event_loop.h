// The loop of a thread: file descriptors, timers and a bounded mailbox. Only this thread touches
// the state of its shard; all other threads post tasks.
//
// Invariants
//  1. Tasks of a poster run in the order of posting; each runs at most once, on the loop's thread.
//  2. Handlers, timers and deferred tasks run on the loop's thread, never nested in one another.
//  3. After Stop() no task runs any more; tasks that did not run are destroyed by the destructor.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "lib/shard/mailbox.h"
#include "lib/shard/task_loop.h"

namespace addend {

class FdHandler {
 public:
  virtual ~FdHandler() = default;
  // `events`: EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP.
  virtual void OnReady(uint32_t events) = 0;
};

class EventLoop : public TaskLoop {
 public:
  using TaskLoop::Task;
  static constexpr size_t kMailboxCapacity = 1 << 20;

  // Starts a thread with a loop. `name` (15 characters at most) shows in `top -H`. `most_spin`: the
  // longest time that it looks for events before it sleeps (SpinBudget).
  static absl::StatusOr<std::unique_ptr<EventLoop>> Start(
      const std::string& name, size_t mailbox_capacity = kMailboxCapacity,
      std::chrono::nanoseconds most_spin = std::chrono::nanoseconds::zero());
  // Stops. Destroys the tasks left in the mailbox.
  ~EventLoop() override = default;

  // ---- any thread ----
  // As the mailbox's; CANCELLED after Stop().
  absl::Status Post(Task task) { return mailbox_->Post(std::move(task)); }
  void PostSurely(Task task) { mailbox_->PostSurely(std::move(task)); }
  // Outlives the loop: for posters that nobody stops before the loop.
  std::shared_ptr<Mailbox> mailbox() const { return mailbox_; }
  Mailbox::Stats stats() const { return mailbox_->stats(); }
  // Runs `task` on the loop and waits until it has run, or the loop has ended. Not from the loop's
  // own thread. A full mailbox accepts it too: a waiting thread has at most a single such task.
  virtual void Run(Task task);
  // Ends the loop after the current task and joins the thread. Idempotent.
  virtual void Stop() = 0;
  virtual bool InLoop() const = 0;
  // The time that the loop has spent looking for events without finding any.
  virtual std::chrono::nanoseconds spun() const { return {}; }

  // ---- the loop's thread only ----
  // The caller owns the handler, and must unwatch it before it destroys it.
  virtual absl::Status Watch(int fd, uint32_t events, FdHandler* handler) = 0;
  virtual void Modify(int fd, uint32_t events) = 0;
  virtual void Unwatch(int fd) = 0;
  virtual void Cancel(uint64_t timer) = 0;

 protected:
  explicit EventLoop(std::shared_ptr<Mailbox> mailbox) : mailbox_(std::move(mailbox)) {}

 private:
  const std::shared_ptr<Mailbox> mailbox_;
};

}  // namespace addend
