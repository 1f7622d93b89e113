// Tensors of GPUs on their way to host memory: which of them the trainers copy next, and which of
// their partitions are there. Belongs to the agent's core thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "services/worker_agent/pipeline.h"
#include "services/worker_agent/tensor.h"

namespace addend {

// Lets the ranks of a group copy the most urgent tensors first: a few at a time, so that what comes
// later may overtake what waits. Every group has a lane of its own.
class StagingOrder {
 public:
  // Tells the ranks `members` of the group to contribute, all in the same order.
  using Start = std::function<void(const std::shared_ptr<Tensor>&, uint32_t lead)>;
  explicit StagingOrder(Start start) : start_(std::move(start)) {}

  // All members of the group of `lead` have pushed the tensor.
  void Announce(const std::shared_ptr<Tensor>& tensor, uint32_t lead);
  // All of them have staged it.
  void Done(const Tensor& tensor, uint32_t lead);
  // The tensor is no more.
  void Forget(const Tensor& tensor);
  void Clear() { lanes_.clear(); }

 private:
  struct Item {
    std::shared_ptr<Tensor> tensor;
    int32_t priority;
    uint64_t sequence;
  };
  struct Later {
    bool operator()(const Item& a, const Item& b) const {
      if (a.priority != b.priority) return a.priority < b.priority;
      return a.sequence > b.sequence;
    }
  };
  struct Lane {
    std::priority_queue<Item, std::vector<Item>, Later> waiting;
    std::map<uint32_t, uint64_t> under_way;  // bytes, by tensor number
    uint64_t under_way_bytes = 0;
  };
  void StartSome(Lane* lane, uint32_t lead);

  const Start start_;
  std::map<uint32_t, Lane> lanes_;  // by lead
  uint64_t next_sequence_ = 0;
};

// Holds a partition until all ranks' parts of it are in host memory. One that does not come from a
// GPU passes at once.
class StagingStage final : public Stage {
 public:
  void Enter(Pipeline* pipeline, Task task) override;
  void Clear() override { waiting_.clear(); }
  // More of the tensor is there.
  void Advance(const Tensor& tensor);

 private:
  Pipeline* pipeline_ = nullptr;
  absl::flat_hash_map<uint32_t, std::deque<Task>> waiting_;  // by tensor number, by partition
};

}  // namespace addend
