// The thread does not know when a caller begins to wait, since telling it would wake it. It finds
// out when a message wakes both, and then naps as long as callers go on.
#include "lib/client/reading.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <utility>

namespace addend::client {
namespace {

using Clock = std::chrono::steady_clock;

// A message for which no caller waits may lie so long after the last caller has gone.
constexpr std::chrono::milliseconds kNap{2};
// While a caller delivers.
constexpr std::chrono::milliseconds kLongestNap{64};

}  // namespace

void Reading::Start() {
  // The caller's threads handle signals: Python's handlers and a debugger rely on it.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { Main(); });
  pthread_setname_np(thread_.native_handle(), "addend-reader");
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Reading::Join() {
  HandOver();
  if (thread_.joinable()) thread_.join();
  over_.store(true);
  const std::lock_guard<std::mutex> lock(turn_);
}

void Reading::Main() {
  for (uint64_t led = led_.load(); !over_.load(); led = led_.load()) {
    ways_.await(-1);
    if (!DeliverAll()) return;
    if (led_.load() == led && !leads_.load()) continue;
    Nap();
    if (!DeliverAll()) return;
  }
}

// All messages that have come, unless a caller does. False: all is over.
bool Reading::DeliverAll() {
  const std::unique_lock<std::mutex> turn(turn_, std::try_to_lock);
  if (!turn.owns_lock()) return true;
  for (;;) {
    const Step step = ways_.deliver();
    if (step == Step::kNothing) return true;
    if (step == Step::kDelivered) continue;
    over_.store(true);
    return false;
  }
}

// As long as callers deliver.
void Reading::Nap() {
  std::unique_lock<std::mutex> lock(nap_mu_);
  auto nap = kNap;
  for (uint64_t led = led_.load();; led = led_.load()) {
    nap_ends_.wait_for(lock, nap, [this] { return needed_; });
    const bool leads = leads_.load();
    if (std::exchange(needed_, false) || (led_.load() == led && !leads)) return;
    nap = leads ? std::min(2 * nap, kLongestNap) : kNap;
  }
}

void Reading::HandOver() {
  {
    const std::lock_guard<std::mutex> lock(nap_mu_);
    needed_ = true;
  }
  nap_ends_.notify_one();
}

void Reading::Await(std::optional<SteadyTime> deadline) const {
  if (!deadline) return ways_.await(-1);
  constexpr int64_t kLongestMs = 1'000'000;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - Clock::now());
  ways_.await(static_cast<int>(std::clamp<int64_t>(left.count(), 0, kLongestMs)));
}

void Reading::While(const std::function<bool()>& done, std::optional<SteadyTime> deadline) {
  if (over_.load() || only_thread_.load(std::memory_order_relaxed)) return;
  const std::unique_lock<std::mutex> turn(turn_, std::try_to_lock);
  if (!turn.owns_lock()) return;
  led_.fetch_add(1);
  leads_.store(true);
  const SteadyTime began = Clock::now();
  DeliverUntil(done, began, deadline);
  leads_.store(false);
  if (Clock::now() - began > kNap) HandOver();  // the thread may nap for longer by now
}

void Reading::DeliverUntil(const std::function<bool()>& done, SteadyTime began,
                           std::optional<SteadyTime> deadline) {
  const SteadyTime sleeps = began + spin_.next();
  Nanoseconds longest_yield{0};
  bool slept = false;
  while (!done()) {
    const Step step = ways_.deliver();
    if (step == Step::kDelivered) continue;
    if (step == Step::kOver) {
      over_.store(true);
      return;
    }
    const SteadyTime looked = Clock::now();
    if (deadline && looked >= *deadline) {  // says nothing of how long a wait takes
      if (!slept) spun_ns_.fetch_add((looked - began).count());
      return;
    }
    if (slept || looked >= sleeps) {
      if (!std::exchange(slept, true)) spun_ns_.fetch_add((looked - began).count());
      Await(deadline);
      continue;
    }
    ::sched_yield();
    longest_yield = std::max<Nanoseconds>(longest_yield, Clock::now() - looked);
  }
  const Nanoseconds waited = Clock::now() - began;
  if (!slept) spun_ns_.fetch_add(waited.count());
  spin_.OnWait(waited, longest_yield);
}

}  // namespace addend::client
