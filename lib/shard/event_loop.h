// A thread with its event loop: file descriptors, timers and a bounded mailbox. Only this thread
// touches the state of its shard; all other threads post tasks.
//
// Invariants
//  1. Tasks of a poster run in the order of posting; each runs at most once, on the loop's thread.
//  2. Handlers, timers and deferred tasks run on the loop's thread, never nested in one another.
//  3. After Stop() no task runs any more; tasks that did not run are destroyed by the destructor.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "lib/base/fd.h"
#include "lib/shard/mailbox.h"

namespace addend {

class FdHandler {
 public:
  virtual ~FdHandler() = default;
  // `events`: EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP.
  virtual void OnReady(uint32_t events) = 0;
};

class EventLoop {
 public:
  using Task = Mailbox::Task;

  // Starts the thread. `name` (15 characters at most) shows in `top -H`.
  static absl::StatusOr<std::unique_ptr<EventLoop>> Start(const std::string& name,
                                                          size_t mailbox_capacity = 1 << 20);
  // Calls Stop(). Destroys the tasks left in the mailbox.
  ~EventLoop();

  // ---- any thread ----
  // As the mailbox's; CANCELLED after Stop().
  absl::Status Post(Task task) { return mailbox_->Post(std::move(task)); }
  void PostSurely(Task task) { mailbox_->PostSurely(std::move(task)); }
  // Outlives the loop: for posters that nobody stops before the loop.
  std::shared_ptr<Mailbox> mailbox() const { return mailbox_; }
  // Runs `task` on the loop and waits until it has run, or the loop has ended. Not from the loop's
  // own thread. A full mailbox accepts it too: a waiting thread has at most a single such task.
  void Run(absl::AnyInvocable<void()> task);
  // Ends the loop after the current task and joins the thread. Idempotent.
  void Stop();
  bool InLoop() const { return std::this_thread::get_id() == thread_id_.load(); }
  Mailbox::Stats stats() const { return mailbox_->stats(); }

  // ---- the loop's thread only ----
  // The caller owns the handler, and must unwatch it before it destroys it.
  absl::Status Watch(int fd, uint32_t events, FdHandler* handler);
  void Modify(int fd, uint32_t events);
  void Unwatch(int fd);
  // Runs at the end of the current turn of the loop.
  void Defer(Task task);
  uint64_t RunAfter(absl::Duration delay, Task task);
  void Cancel(uint64_t timer);

 private:
  struct Watched {
    FdHandler* handler;
    uint32_t serial;  // distinguishes a reused descriptor from the descriptor that an event was for
  };
  EventLoop(std::string name, UniqueFd epoll, std::shared_ptr<Mailbox> mailbox);
  void Main();
  void RunMailbox();
  void RunDeferred();
  void RunTimers();
  int MillisUntilTimer() const;

  // Constant after construction.
  const std::string name_;
  const UniqueFd epoll_;
  const std::shared_ptr<Mailbox> mailbox_;
  std::thread thread_;
  std::atomic<std::thread::id> thread_id_;

  // Owned by the loop's thread.
  absl::flat_hash_map<int, Watched> watched_;
  uint32_t next_serial_ = 1;
  std::map<std::pair<absl::Time, uint64_t>, Task> timers_;
  absl::flat_hash_map<uint64_t, absl::Time> timer_times_;
  uint64_t next_timer_ = 1;
  std::vector<Task> deferred_;

  std::atomic<bool> stop_{false};
};

}  // namespace addend
