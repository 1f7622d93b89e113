#include "lib/client/cuda/event_watch.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <utility>

namespace addend::client::cuda {
namespace {

// The thread asks again after a sixteenth of the time that it has waited, within these bounds: a
// copy of a chunk takes about 80 us, and a backward pass before it many milliseconds.
constexpr std::chrono::nanoseconds kShortestPause = std::chrono::microseconds(10);
constexpr std::chrono::nanoseconds kLongestPause = std::chrono::microseconds(500);
constexpr int kPartOfWait = 16;
// The kernel would add 50 us to each pause.
constexpr unsigned long kTimerSlackNs = 1000;

}  // namespace

EventWatch::EventWatch(int device, std::function<void(cudaError_t)> failed)
    : device_(device), failed_(std::move(failed)), thread_([this] { Watch(); }) {}

EventWatch::~EventWatch() {
  {
    const std::lock_guard lock(mu_);
    over_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void EventWatch::Add(Order order, Event event, std::function<void()> then) {
  const std::lock_guard lock(mu_);
  const bool idle = IsIdle();
  queues_[order].push_back({std::move(event), std::move(then)});
  if (idle) changed_.notify_one();
}

void EventWatch::Watch() {
  pthread_setname_np(pthread_self(), "addend-gpu");
  prctl(PR_SET_TIMERSLACK, kTimerSlackNs, 0, 0, 0);
  if (const cudaError_t status = cudaSetDevice(device_); status != cudaSuccess) {
    failed_(status);
    return;
  }
  for (;;) {
    {
      std::unique_lock lock(mu_);
      changed_.wait(lock, [&] { return over_ || !IsIdle(); });
      if (over_) return;
    }
    Clock::time_point last_reached = Clock::now();
    do {
      if (ReportReached()) last_reached = Clock::now();
    } while (Pause(last_reached));
  }
}

// Returns whether an event had been reached.
bool EventWatch::ReportReached() {
  bool any = false;
  for (std::deque<Watched>& queue : queues_) {
    for (;;) {
      const Watched* first = nullptr;
      {
        const std::lock_guard lock(mu_);
        if (over_ || queue.empty()) break;
        first = &queue.front();  // stays where it is: others only append
      }
      const cudaError_t status = cudaEventQuery(first->event.get());
      if (status == cudaErrorNotReady) break;
      if (status != cudaSuccess) {
        failed_(status);
        const std::lock_guard lock(mu_);
        over_ = true;
        break;
      }
      first->then();
      any = true;
      const std::lock_guard lock(mu_);
      queue.pop_front();
    }
  }
  return any;
}

// mu_ is held.
bool EventWatch::IsIdle() const {
  return std::all_of(std::begin(queues_), std::end(queues_),
                     [](const std::deque<Watched>& one) { return one.empty(); });
}

// Returns false at once if there is nothing left to wait for.
bool EventWatch::Pause(Clock::time_point last_reached) {
  const std::chrono::nanoseconds pause = std::clamp<std::chrono::nanoseconds>(
      (Clock::now() - last_reached) / kPartOfWait, kShortestPause, kLongestPause);
  std::unique_lock lock(mu_);
  if (over_ || IsIdle()) return false;
  changed_.wait_for(lock, pause, [&] { return over_; });
  return !over_;
}

}  // namespace addend::client::cuda
