// The tasks that other threads post to a loop. A poster that may outlive the loop holds the mailbox
// and not the loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "lib/base/mutex.h"

namespace addend {

class Mailbox {
 public:
  using Task = absl::AnyInvocable<void()>;
  struct Stats {
    uint64_t mailbox_depth_max = 0;
    uint64_t posts_rejected = 0;
  };

  // `wake` is called, on any thread, when a task arrives in an empty mailbox; it must not wait.
  // `capacity` in tasks.
  Mailbox(std::string name, absl::AnyInvocable<void() const> wake, size_t capacity)
      : name_(std::move(name)), wake_(std::move(wake)), capacity_(capacity) {}

  // ---- any thread ----
  // RESOURCE_EXHAUSTED if the mailbox is full, CANCELLED after Close(); the task is destroyed in
  // both cases, on the caller's thread.
  absl::Status Post(Task task);
  // Like Post(), but accepted by a full mailbox too: for tasks that are never sent again (the end
  // of a link, memory that is released) and whose number is bounded elsewhere.
  void PostSurely(Task task);
  // No task is accepted any more. Wakes the loop.
  void Close();
  Stats stats() const;

  // ---- the loop ----
  // All tasks, in the order of posting.
  std::vector<Task> Take();

 private:
  absl::Status Enqueue(Task task, size_t capacity);

  const std::string name_;
  const absl::AnyInvocable<void() const> wake_;
  const size_t capacity_;
  mutable Mutex mu_;
  std::vector<Task> tasks_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  Stats stats_ ABSL_GUARDED_BY(mu_);
};

}  // namespace addend
