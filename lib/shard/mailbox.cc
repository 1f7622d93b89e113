#include "lib/shard/mailbox.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_format.h"

namespace addend {

absl::Status Mailbox::Post(Task task) { return Enqueue(std::move(task), capacity_); }

void Mailbox::PostSurely(Task task) {
  Enqueue(std::move(task), std::numeric_limits<size_t>::max()).IgnoreError();
}

absl::Status Mailbox::Enqueue(Task task, size_t capacity) {
  bool first = false;
  {
    MutexLock lock(&mu_);
    if (closed_) return absl::CancelledError(absl::StrFormat("the loop %s has stopped", name_));
    if (tasks_.size() >= capacity) {
      ++stats_.posts_rejected;
      return absl::ResourceExhaustedError(
          absl::StrFormat("the mailbox of %s is full (%d tasks)", name_, capacity));
    }
    first = tasks_.empty();
    tasks_.push_back(std::move(task));
    stats_.mailbox_depth_max = std::max<uint64_t>(stats_.mailbox_depth_max, tasks_.size());
  }
  if (first) wake_();
  return absl::OkStatus();
}

void Mailbox::Close() {
  {
    MutexLock lock(&mu_);
    closed_ = true;
  }
  wake_();
}

std::vector<Mailbox::Task> Mailbox::Take() {
  std::vector<Task> tasks;
  MutexLock lock(&mu_);
  tasks.swap(tasks_);
  return tasks;
}

Mailbox::Stats Mailbox::stats() const {
  MutexLock lock(&mu_);
  return stats_;
}

}  // namespace addend
