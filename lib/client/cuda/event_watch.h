// A thread that asks CUDA which events the streams have reached, and reports them.
//
// Not by callbacks in streams (cudaStreamAddCallback, cudaLaunchHostFunc): on an H100 in a virtual
// machine a queue of them slowed every enqueuing call of the process to 45 us, and copies of
// contributions with results to two thirds of the rate of plain copies (bench: addend-bench-gpu).
//
// Owned by the executor. Add: any thread. The destructor waits for the thread, and drops the
// events that have not been reached by then.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "lib/client/cuda/events.h"

namespace addend::client::cuda {

class EventWatch {
 public:
  // `failed` runs in the watch's thread if the device fails; nothing runs after it.
  EventWatch(int device, std::function<void(cudaError_t)> failed);
  ~EventWatch();
  EventWatch(const EventWatch&) = delete;
  EventWatch& operator=(const EventWatch&) = delete;

  // Events of one order are reported as they were added, whatever their streams.
  enum Order { kStaged, kFetched, kOrders };
  // `then` runs in the watch's thread when `event`, which has been recorded, is reached. The event
  // must not be recorded again before.
  void Add(Order order, Event event, std::function<void()> then);

 private:
  struct Watched {
    Event event;
    std::function<void()> then;
  };
  using Clock = std::chrono::steady_clock;

  void Watch();
  bool ReportReached();
  bool IsIdle() const;
  bool Pause(Clock::time_point last_reached);

  const int device_;
  const std::function<void(cudaError_t)> failed_;
  std::mutex mu_;
  std::condition_variable changed_;
  // Guarded by mu_.
  std::deque<Watched> queues_[kOrders];
  bool over_ = false;
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace addend::client::cuda
