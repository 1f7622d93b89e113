// The agent's result segments, by tensor name: the colocated server writes its results there. The
// agent's core thread enters them, the colocated server's control thread looks them up.
// Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "lib/base/mutex.h"
#include "lib/summation/specs.h"
#include "services/worker_agent/node_tensor.h"

namespace addend {

class ResultSlots {
 public:
  // Before the tensor is declared to the scheduler; a later tensor of the name replaces an
  // earlier tensor.
  void Enter(Generation generation, const NodeTensor& tensor) {
    MutexLock lock(&mu_);
    slots_[{generation, tensor.shape.name}] =
        ExternalSlots{.slot = {tensor.ResultSlot(Round(0)), tensor.ResultSlot(Round(1))},
                      .reads = tensor.results->reads(),
                      .keep_alive = tensor.results};
  }
  std::optional<ExternalSlots> Find(Generation generation, const std::string& name) const {
    MutexLock lock(&mu_);
    const auto it = slots_.find({generation, name});
    if (it == slots_.end()) return std::nullopt;
    return it->second;
  }
  // The server keeps the memory of its tensors; only the name is forgotten.
  void Remove(Generation generation, const NodeTensor& tensor) {
    MutexLock lock(&mu_);
    const auto it = slots_.find({generation, tensor.shape.name});
    if (it != slots_.end() && it->second.keep_alive == tensor.results) slots_.erase(it);
  }
  void Clear() {
    MutexLock lock(&mu_);
    slots_.clear();
  }

 private:
  mutable Mutex mu_;
  std::map<std::pair<Generation, std::string>, ExternalSlots> slots_ ABSL_GUARDED_BY(mu_);
};

}  // namespace addend
