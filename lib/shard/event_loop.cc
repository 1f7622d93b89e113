// The turn of a loop: descriptors, the mailbox, timers, deferred tasks.
#include "lib/shard/event_loop.h"

#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_format.h"
#include "lib/base/clock.h"
#include "lib/base/fd.h"
#include "lib/base/mutex.h"
#include "lib/base/spin_budget.h"
#include "lib/base/status_macros.h"
#include "lib/trace/clock.h"

namespace addend {
namespace {

using Nanoseconds = std::chrono::nanoseconds;
using SteadyTime = std::chrono::steady_clock::time_point;

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

class ThreadLoop final : public EventLoop {
 public:
  // `wake`: the eventfd that the mailbox writes to; the mailbox owns it.
  ThreadLoop(std::string name, UniqueFd epoll, int wake, std::shared_ptr<Mailbox> mailbox,
             Nanoseconds most_spin);
  ~ThreadLoop() override { Stop(); }
  void Begin() {
    thread_ = std::thread([this] { Main(); });
  }

  void Stop() override;
  bool InLoop() const override { return std::this_thread::get_id() == thread_id_.load(); }
  Nanoseconds spun() const override {
    return Nanoseconds(spun_ns_.load(std::memory_order_relaxed));
  }

  absl::Time Now() const override { return SteadyNow(); }
  int64_t TraceTime() const override { return TraceNow(); }
  void Defer(Task task) override;
  uint64_t RunAfter(absl::Duration delay, Task task) override;
  void Cancel(uint64_t timer) override;
  absl::Status Watch(int fd, uint32_t events, FdHandler* handler) override;
  void Modify(int fd, uint32_t events) override;
  void Unwatch(int fd) override;

 private:
  struct Watched {
    FdHandler* handler;
    uint32_t serial;  // distinguishes a reused descriptor from the descriptor that an event was for
  };
  void Main();
  int Await(epoll_event* events);
  int Look(epoll_event* events, SteadyTime began, SteadyTime sleeps, Nanoseconds* longest_yield);
  void RunMailbox();
  void RunDeferred();
  void RunTimers();
  int MillisUntilTimer() const;

  // Constant after construction.
  const std::string name_;
  const UniqueFd epoll_;
  const int wake_;
  const bool spins_;
  std::thread thread_;
  std::atomic<std::thread::id> thread_id_;

  // Owned by the loop's thread.
  absl::flat_hash_map<int, Watched> watched_;
  uint32_t next_serial_ = 1;
  std::map<std::pair<absl::Time, uint64_t>, Task> timers_;
  absl::flat_hash_map<uint64_t, absl::Time> timer_times_;
  uint64_t next_timer_ = 1;
  std::vector<Task> deferred_;
  SpinBudget spin_;

  std::atomic<int64_t> spun_ns_{0};
  std::atomic<bool> stop_{false};
};

ThreadLoop::ThreadLoop(std::string name, UniqueFd epoll, int wake, std::shared_ptr<Mailbox> mailbox,
                       Nanoseconds most_spin)
    : EventLoop(std::move(mailbox)),
      name_(std::move(name)),
      epoll_(std::move(epoll)),
      wake_(wake),
      spins_(most_spin > Nanoseconds::zero()),
      spin_(most_spin) {}

void ThreadLoop::Stop() {
  ADDEND_CHECK(!InLoop(), "a loop cannot join itself");
  stop_.store(true);
  mailbox()->Close();
  if (thread_.joinable()) thread_.join();
  mailbox()->Take();  // destroys the tasks that did not run
}

absl::Status ThreadLoop::Watch(int fd, uint32_t events, FdHandler* handler) {
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

void ThreadLoop::Modify(int fd, uint32_t events) {
  const auto it = watched_.find(fd);
  if (it == watched_.end()) return;
  epoll_event event{};
  event.events = events;
  event.data.u64 = Pack(fd, it->second.serial);
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void ThreadLoop::Unwatch(int fd) {
  if (watched_.erase(fd) > 0) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

void ThreadLoop::Defer(Task task) {
  ADDEND_CHECK(InLoop(), "Defer() is for the loop's thread");
  deferred_.push_back(std::move(task));
}

uint64_t ThreadLoop::RunAfter(absl::Duration delay, Task task) {
  ADDEND_CHECK(InLoop(), "timers belong to the loop's thread");
  const uint64_t id = next_timer_++;
  const absl::Time when = SteadyNow() + delay;
  timers_.emplace(std::make_pair(when, id), std::move(task));
  timer_times_[id] = when;
  return id;
}

void ThreadLoop::Cancel(uint64_t timer) {
  const auto it = timer_times_.find(timer);
  if (it == timer_times_.end()) return;
  timers_.erase({it->second, timer});
  timer_times_.erase(it);
}

int ThreadLoop::MillisUntilTimer() const {
  if (!deferred_.empty()) return 0;
  if (timers_.empty()) return -1;
  const absl::Duration left = timers_.begin()->first.first - SteadyNow();
  // Rounded up: waking a moment early would spin until the timer is due.
  return static_cast<int>(
      std::clamp<int64_t>(absl::ToInt64Milliseconds(left + absl::Milliseconds(1)), 0, 60000));
}

void ThreadLoop::RunMailbox() {
  for (std::vector<Task> tasks = mailbox()->Take(); Task & task : tasks) {
    if (stop_.load(std::memory_order_relaxed)) return;
    task();
    task = nullptr;
  }
}

void ThreadLoop::RunDeferred() {
  // A task that a deferred task defers runs in the next turn, so a turn always ends.
  std::vector<Task> tasks;
  tasks.swap(deferred_);
  for (Task& task : tasks) task();
}

void ThreadLoop::RunTimers() {
  const absl::Time now = SteadyNow();
  while (!timers_.empty() && timers_.begin()->first.first <= now) {
    auto node = timers_.extract(timers_.begin());
    timer_times_.erase(node.key().second);
    node.mapped()();
  }
}

// The number of the next events; 0 if a timer is due first.
int ThreadLoop::Await(epoll_event* events) {
  const int wait_ms = MillisUntilTimer();
  if (wait_ms == 0 || !spins_) return ::epoll_wait(epoll_.get(), events, kEventsPerTurn, wait_ms);
  const SteadyTime began = std::chrono::steady_clock::now();
  SteadyTime sleeps = began + spin_.next();
  if (wait_ms > 0) sleeps = std::min(sleeps, began + std::chrono::milliseconds(wait_ms));
  Nanoseconds longest_yield{0};
  int count = Look(events, began, sleeps, &longest_yield);
  if (count == 0) count = ::epoll_wait(epoll_.get(), events, kEventsPerTurn, MillisUntilTimer());
  spin_.OnWait(std::chrono::steady_clock::now() - began, longest_yield);
  return count;
}

int ThreadLoop::Look(epoll_event* events, SteadyTime began, SteadyTime sleeps,
                     Nanoseconds* longest_yield) {
  int count = 0;
  SteadyTime looked = began;
  while (looked < sleeps && !stop_.load(std::memory_order_relaxed)) {
    count = ::epoll_wait(epoll_.get(), events, kEventsPerTurn, 0);
    if (count != 0) break;
    ::sched_yield();
    const SteadyTime now = std::chrono::steady_clock::now();
    *longest_yield = std::max<Nanoseconds>(*longest_yield, now - looked);
    looked = now;
  }
  if (looked > began) spun_ns_.fetch_add((looked - began).count(), std::memory_order_relaxed);
  return count;
}

void ThreadLoop::Main() {
  thread_id_.store(std::this_thread::get_id());
  ::pthread_setname_np(::pthread_self(), name_.substr(0, 15).c_str());
  epoll_event events[kEventsPerTurn];
  while (!stop_.load()) {
    const int count = Await(events);
    for (int i = 0; i < count && !stop_.load(std::memory_order_relaxed); ++i) {
      const int fd = static_cast<int>(events[i].data.u64 & 0xffffffff);
      const uint32_t serial = static_cast<uint32_t>(events[i].data.u64 >> 32);
      if (serial == 0) {
        uint64_t ignored;
        [[maybe_unused]] ssize_t got = ::read(wake_, &ignored, sizeof(ignored));
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

}  // namespace

void EventLoop::Run(Task task) {
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

absl::StatusOr<std::unique_ptr<EventLoop>> EventLoop::Start(const std::string& name,
                                                            size_t mailbox_capacity,
                                                            std::chrono::nanoseconds most_spin) {
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
  const int wake_fd = wake.get();
  auto mailbox = std::make_shared<Mailbox>(
      name,
      [wake = std::move(wake)] {
        const uint64_t one = 1;
        [[maybe_unused]] ssize_t written = ::write(wake.get(), &one, sizeof(one));
      },
      mailbox_capacity);
  auto loop =
      std::make_unique<ThreadLoop>(name, std::move(epoll), wake_fd, std::move(mailbox), most_spin);
  loop->Begin();
  return loop;
}

}  // namespace addend
