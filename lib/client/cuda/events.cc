#include "lib/client/cuda/events.h"

namespace addend::client::cuda {

EventPool::~EventPool() {
  for (cudaEvent_t event : free_) cudaEventDestroy(event);
}

Event EventPool::Take() {
  cudaEvent_t event = nullptr;
  {
    const std::lock_guard lock(mu_);
    if (!free_.empty()) {
      event = free_.back();
      free_.pop_back();
    }
  }
  if (event == nullptr && !errors_.Check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
                                         "cudaEventCreateWithFlags")) {
    return nullptr;
  }
  return Event(event, [this](cudaEvent_t done) { PutBack(done); });
}

void EventPool::PutBack(cudaEvent_t event) {
  const std::lock_guard lock(mu_);
  free_.push_back(event);
}

}  // namespace addend::client::cuda
