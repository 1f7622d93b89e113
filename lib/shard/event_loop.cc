// The turn of a loop: descriptors, the mailbox, timers, deferred tasks.
#include "lib/shard/event_loop.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_format.h"
#include "lib/base/clock.h"
#include "lib/base/status_macros.h"

namespace addend {
namespace {

constexpr int kEventsPerTurn = 64;

struct Completion {
  Mutex mu;
  CondVar cv;
  bool done ABSL_GUARDED_BY(mu) = false;
};

// Signals when it is destroyed, also with a task that never ran, so that no thread waits for a
// stopped loop.
class CompletionSignal {
 public:
  explicit CompletionSignal(std::shared_ptr<Completion> completion)
      : completion_(std::move(completion)) {}
  ~CompletionSignal() {
    MutexLock lock(&completion_->mu);
    completion_->done = true;
    completion_->cv.NotifyAll();
  }
  CompletionSignal(const CompletionSignal&) = delete;
  CompletionSignal& operator=(const CompletionSignal&) = delete;

 private:
  const std::shared_ptr<Completion> completion_;
};

uint64_t Pack(int fd, uint32_t serial) {
  return uint64_t{serial} << 32 | static_cast<uint32_t>(fd);
}

}  // namespace

absl::StatusOr<std::unique_ptr<EventLoop>> EventLoop::Start(const std::string& name,
                                                            size_t mailbox_capacity) {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll.valid() || !wake.valid()) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("cannot start the event loop %s: %s", name, std::strerror(errno)));
  }
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = Pack(wake.get(), 0);
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake.get(), &event) != 0) {
    return absl::InternalError(absl::StrFormat("epoll_ctl: %s", std::strerror(errno)));
  }
  std::unique_ptr<EventLoop> loop(new EventLoop(
      name, std::move(epoll), std::make_shared<Mailbox>(name, std::move(wake), mailbox_capacity)));
  EventLoop* raw = loop.get();
  loop->thread_ = std::thread([raw] { raw->Main(); });
  return loop;
}

EventLoop::EventLoop(std::string name, UniqueFd epoll, std::shared_ptr<Mailbox> mailbox)
    : name_(std::move(name)), epoll_(std::move(epoll)), mailbox_(std::move(mailbox)) {}

EventLoop::~EventLoop() { Stop(); }

void EventLoop::Run(absl::AnyInvocable<void()> task) {
  ADDEND_CHECK(!InLoop(), "Run() would wait for itself");
  // Shared: the waiting thread may return while the loop still holds the mutex.
  auto completion = std::make_shared<Completion>();
  // After Stop() the task is destroyed at once, and signals.
  PostSurely(
      [task = std::move(task), signal = std::make_unique<CompletionSignal>(completion)]() mutable {
        task();
        signal.reset();
      });
  MutexLock lock(&completion->mu);
  while (!completion->done) completion->cv.Wait(&completion->mu);
}

void EventLoop::Stop() {
  ADDEND_CHECK(!InLoop(), "a loop cannot join itself");
  stop_.store(true);
  mailbox_->Close();
  if (thread_.joinable()) thread_.join();
  mailbox_->Take();  // destroys the tasks that did not run
}

absl::Status EventLoop::Watch(int fd, uint32_t events, FdHandler* handler) {
  ADDEND_CHECK(InLoop(), "descriptors belong to the loop's thread");
  const uint32_t serial = next_serial_++;
  epoll_event event{};
  event.events = events;
  event.data.u64 = Pack(fd, serial);
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return absl::ResourceExhaustedError(absl::StrFormat("epoll_ctl: %s", std::strerror(errno)));
  }
  watched_[fd] = Watched{handler, serial};
  return absl::OkStatus();
}

void EventLoop::Modify(int fd, uint32_t events) {
  const auto it = watched_.find(fd);
  if (it == watched_.end()) return;
  epoll_event event{};
  event.events = events;
  event.data.u64 = Pack(fd, it->second.serial);
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void EventLoop::Unwatch(int fd) {
  if (watched_.erase(fd) > 0) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

void EventLoop::Defer(Task task) {
  ADDEND_CHECK(InLoop(), "Defer() is for the loop's thread");
  deferred_.push_back(std::move(task));
}

uint64_t EventLoop::RunAfter(absl::Duration delay, Task task) {
  ADDEND_CHECK(InLoop(), "timers belong to the loop's thread");
  const uint64_t id = next_timer_++;
  const absl::Time when = SteadyNow() + delay;
  timers_.emplace(std::make_pair(when, id), std::move(task));
  timer_times_[id] = when;
  return id;
}

void EventLoop::Cancel(uint64_t timer) {
  const auto it = timer_times_.find(timer);
  if (it == timer_times_.end()) return;
  timers_.erase({it->second, timer});
  timer_times_.erase(it);
}

int EventLoop::MillisUntilTimer() const {
  if (!deferred_.empty()) return 0;
  if (timers_.empty()) return -1;
  const absl::Duration left = timers_.begin()->first.first - SteadyNow();
  // Rounded up: waking a moment early would spin until the timer is due.
  return static_cast<int>(
      std::clamp<int64_t>(absl::ToInt64Milliseconds(left + absl::Milliseconds(1)), 0, 60000));
}

void EventLoop::RunMailbox() {
  for (std::vector<Task> tasks = mailbox_->Take(); Task & task : tasks) {
    if (stop_.load(std::memory_order_relaxed)) return;
    task();
    task = nullptr;
  }
}

void EventLoop::RunDeferred() {
  // A task that a deferred task defers runs in the next turn, so a turn always ends.
  std::vector<Task> tasks;
  tasks.swap(deferred_);
  for (Task& task : tasks) task();
}

void EventLoop::RunTimers() {
  const absl::Time now = SteadyNow();
  while (!timers_.empty() && timers_.begin()->first.first <= now) {
    auto node = timers_.extract(timers_.begin());
    timer_times_.erase(node.key().second);
    node.mapped()();
  }
}

void EventLoop::Main() {
  thread_id_.store(std::this_thread::get_id());
  ::pthread_setname_np(::pthread_self(), name_.substr(0, 15).c_str());
  epoll_event events[kEventsPerTurn];
  while (!stop_.load()) {
    const int count = ::epoll_wait(epoll_.get(), events, kEventsPerTurn, MillisUntilTimer());
    for (int i = 0; i < count && !stop_.load(std::memory_order_relaxed); ++i) {
      const int fd = static_cast<int>(events[i].data.u64 & 0xffffffff);
      const uint32_t serial = static_cast<uint32_t>(events[i].data.u64 >> 32);
      if (serial == 0) {
        uint64_t ignored;
        [[maybe_unused]] ssize_t got = ::read(mailbox_->wake_fd(), &ignored, sizeof(ignored));
        RunMailbox();
        continue;
      }
      const auto it = watched_.find(fd);
      if (it == watched_.end() || it->second.serial != serial) continue;
      it->second.handler->OnReady(events[i].events);
    }
    if (!timers_.empty()) RunTimers();
    if (!deferred_.empty()) RunDeferred();
  }
}

}  // namespace addend
