// The mailbox's tasks run as one task of the host. All other tasks are the host's, and do nothing
// once the guest has stopped.
#include "lib/shard/guest_loop.h"

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "lib/base/status_macros.h"

namespace addend {
namespace {

class GuestLoop;

// Outlives the guest in the tasks that the host has.
struct Stay {
  EventLoop* host;
  GuestLoop* guest;  // null once it has stopped; the host's thread only
};

class GuestLoop final : public EventLoop {
 public:
  GuestLoop(std::shared_ptr<Stay> stay, std::shared_ptr<Mailbox> mailbox)
      : EventLoop(std::move(mailbox)), stay_(std::move(stay)), host_(stay_->host) {
    stay_->guest = this;  // the host has no task of the guest's yet
  }
  ~GuestLoop() override { Stop(); }

  void Stop() override {
    ADDEND_CHECK(!InLoop(), "a loop cannot end its host's wait");
    if (std::exchange(stopped_, true)) return;
    mailbox()->Close();
    host_->Run([this] {
      stay_->guest = nullptr;
      for (const int fd : watched_) host_->Unwatch(fd);
      watched_.clear();
      for (const uint64_t timer : timers_) host_->Cancel(timer);
      timers_.clear();
    });
    mailbox()->Take();  // destroys the tasks that did not run
  }

  bool InLoop() const override { return host_->InLoop(); }
  absl::Time Now() const override { return host_->Now(); }
  int64_t TraceTime() const override { return host_->TraceTime(); }
  void Defer(Task task) override { host_->Defer(WhileHere(std::move(task))); }

  uint64_t RunAfter(absl::Duration delay, Task task) override {
    // Its number is known only afterwards; the timer does not run before that.
    auto number = std::make_shared<uint64_t>(0);
    *number = host_->RunAfter(delay, WhileHere([this, number, task = std::move(task)]() mutable {
                                timers_.erase(*number);
                                task();
                              }));
    timers_.insert(*number);
    return *number;
  }
  void Cancel(uint64_t timer) override {
    if (timers_.erase(timer) > 0) host_->Cancel(timer);
  }

  absl::Status Watch(int fd, uint32_t events, FdHandler* handler) override {
    ADDEND_RETURN_IF_ERROR(host_->Watch(fd, events, handler));
    watched_.insert(fd);
    return absl::OkStatus();
  }
  void Modify(int fd, uint32_t events) override { host_->Modify(fd, events); }
  void Unwatch(int fd) override {
    if (watched_.erase(fd) > 0) host_->Unwatch(fd);
  }

  // The host's thread.
  static void RunMailbox(Stay* stay) {
    if (stay->guest == nullptr) return;
    for (std::vector<Task> tasks = stay->guest->mailbox()->Take(); Task & task : tasks) {
      task();
      task = nullptr;
    }
  }

 private:
  Task WhileHere(Task task) {
    return [stay = stay_, task = std::move(task)]() mutable {
      if (stay->guest != nullptr) task();
    };
  }

  const std::shared_ptr<Stay> stay_;
  EventLoop* const host_;
  bool stopped_ = false;
  // The host's thread only.
  std::set<int> watched_;
  std::set<uint64_t> timers_;
};

}  // namespace

std::unique_ptr<EventLoop> MakeGuestLoop(EventLoop* host, const std::string& name,
                                         size_t mailbox_capacity) {
  auto stay = std::make_shared<Stay>(Stay{host, nullptr});
  auto mailbox = std::make_shared<Mailbox>(
      name,
      [stay] {
        const auto run = [stay] { GuestLoop::RunMailbox(stay.get()); };
        // A full mailbox of the host takes it too: a guest has at most one such task.
        stay->host->InLoop() ? stay->host->Defer(run) : stay->host->PostSurely(run);
      },
      mailbox_capacity);
  return std::make_unique<GuestLoop>(std::move(stay), std::move(mailbox));
}

}  // namespace addend
