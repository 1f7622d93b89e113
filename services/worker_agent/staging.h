// Tensors of GPUs on their way to host memory: the order in which the trainers copy them, and the
// partitions that wait for them. Belongs to the agent's core thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "services/worker_agent/contribution_source.h"
#include "services/worker_agent/node_tensor.h"

namespace addend {

// Lets the ranks of a group copy the most urgent tensors first: a few at a time, so that later
// tensors may overtake those that wait. Every group has a lane of its own.
class StagingOrder {
 public:
  // Tells the ranks `members` of the group to contribute, all in the same order.
  using Start = std::function<void(const std::shared_ptr<NodeTensor>&, uint32_t lead)>;
  explicit StagingOrder(Start start) : start_(std::move(start)) {}

  // All members of the group of `lead` have pushed the tensor.
  void Announce(const std::shared_ptr<NodeTensor>& tensor, uint32_t lead);
  // All of them have staged it.
  void Done(const NodeTensor& tensor, uint32_t lead);
  // The tensor ends.
  void Forget(const NodeTensor& tensor);
  void Clear() { lanes_.clear(); }

 private:
  struct Item {
    std::shared_ptr<NodeTensor> tensor;
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

// The partitions that wait until all ranks' parts of them are in host memory.
class StagingQueue {
 public:
  // False: all parts are there already, or do not come from a GPU; the partition does not wait.
  bool Hold(const PartitionPush& push);
  // More of the tensor is in host memory: returns its partitions that wait no longer.
  std::vector<PartitionPush> Advance(const NodeTensor& tensor);
  void Clear() { waiting_.clear(); }

 private:
  absl::flat_hash_map<uint32_t, std::deque<PartitionPush>>
      waiting_;  // by tensor number, by partition
};

}  // namespace addend
