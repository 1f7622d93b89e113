// A pool of reused CUDA events: in the steady state no event is created.
//
// Owned by the executor, and must outlive every Event that it has given. Any thread. An event may
// return to the pool while streams still wait for it: they wait for the record that was the last
// when the wait was enqueued, not for records of the event's next user.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <mutex>
#include <vector>

#include "lib/client/cuda/errors.h"

namespace addend::client::cuda {

// Returns to its pool with the last owner: a round and, until the tensor's next round, the tensor.
using Event = std::shared_ptr<CUevent_st>;

class EventPool {
 public:
  explicit EventPool(const Errors& errors) : errors_(errors) {}
  // The device must be current.
  ~EventPool();
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  // Returns null on failure: Errors::Text() has the reason. The device must be current.
  Event Take();

 private:
  void PutBack(cudaEvent_t event);

  const Errors& errors_;
  std::mutex mu_;
  std::vector<cudaEvent_t> free_;  // guarded by mu_
};

}  // namespace addend::client::cuda
