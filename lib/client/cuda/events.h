// CUDA events, used again and again: in the steady state none is created.
//
// Owned by the executor, and must outlive every Event that it gave. Any thread. An event may go
// back while streams still wait for it: what they wait for is the record that was the last when
// they were told to wait, not those of its next user.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <mutex>
#include <vector>

#include "lib/client/cuda/errors.h"

namespace addend::client::cuda {

// Goes back to its pool with the last owner: a round and, until the tensor's next one, the tensor.
using Event = std::shared_ptr<CUevent_st>;

class EventPool {
 public:
  explicit EventPool(const Errors& errors) : errors_(errors) {}
  // The device must be current.
  ~EventPool();
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  // Null: Errors::Text() has the reason. The device must be current.
  Event Take();

 private:
  void PutBack(cudaEvent_t event);

  const Errors& errors_;
  std::mutex mu_;
  std::vector<cudaEvent_t> free_;  // guarded by mu_
};

}  // namespace addend::client::cuda
