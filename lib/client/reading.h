// The choice of the thread that receives the agent's messages. A caller that waits for a result
// receives them itself: its result then wakes the caller's thread, and not first a reader that
// wakes the caller. While no caller waits the reader's thread receives.
//
// A caller looks for messages for a while before it sleeps (SpinBudget), and a yield between two
// looks gives its processor to other threads with work there.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "lib/base/spin_budget.h"

namespace addend::client {

using SteadyTime = std::chrono::steady_clock::time_point;
using Nanoseconds = std::chrono::nanoseconds;

class Reading {
 public:
  enum class Step {
    kDelivered,
    kNothing,  // no message is there
    kOver,     // none will come any more
  };
  struct Ways {
    // Delivers a message that has come, if one has. Called by one thread at a time.
    std::function<Step()> deliver;
    // Waits until a message may have come, for at most so many milliseconds (below 0: no limit).
    // Called by several threads at a time.
    std::function<void(int)> await;
  };

  // `most_spin`: see SpinBudget.
  Reading(Ways ways, Nanoseconds most_spin) : ways_(std::move(ways)), spin_(most_spin) {}

  // Starts the thread. Once.
  void Start();
  // Waits for the thread's end, and until no caller delivers: `deliver` has to say kOver by now,
  // and `await` to return. Needed before the destructor if the thread was started.
  void Join();

  // ---- callers; any other thread ----
  // Delivers messages until `done`, or until the deadline. Returns at once where another thread
  // delivers, or all is over. `done` is called between messages, without any lock.
  void While(const std::function<bool()>& done, std::optional<SteadyTime> deadline);
  // The thread goes on at once, because a caller waits without delivering.
  void HandOver();
  // From now on the thread alone delivers: messages need it even while no caller waits.
  void KeepToThread() { only_thread_.store(true, std::memory_order_relaxed); }
  // The time that callers have spent looking for messages.
  Nanoseconds spun() const { return Nanoseconds(spun_ns_.load(std::memory_order_relaxed)); }

 private:
  void Main();
  bool DeliverAll();
  void DeliverUntil(const std::function<bool()>& done, SteadyTime began,
                    std::optional<SteadyTime> deadline);
  void Nap();
  void Await(std::optional<SteadyTime> deadline) const;

  const Ways ways_;
  std::thread thread_;
  std::mutex turn_;  // held by the thread that delivers
  SpinBudget spin_;  // guarded by turn_
  std::atomic<bool> over_{false};
  std::atomic<bool> only_thread_{false};
  std::atomic<uint64_t> led_{0};    // times that a caller has begun to deliver
  std::atomic<bool> leads_{false};  // a caller delivers
  std::atomic<int64_t> spun_ns_{0};

  std::mutex nap_mu_;
  std::condition_variable nap_ends_;
  bool needed_ = false;  // guarded by nap_mu_
};

}  // namespace addend::client
