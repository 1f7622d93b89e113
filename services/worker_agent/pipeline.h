// The way of a partition through the agent: a row of stages, each with its own order of service.
// Which stages a partition passes, and in which order, is data: see Agent's constructor. Belongs to
// the agent's core thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <queue>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "lib/shard/event_loop.h"
#include "services/worker_agent/server_link.h"
#include "services/worker_agent/tensor.h"

namespace addend {

// One partition in its running round.
struct Task {
  std::shared_ptr<Tensor> tensor;
  uint32_t partition = 0;
  Round round;
  int32_t priority = 0;
  uint64_t place = 0;  // in the convoy of this node's contributions; 0: out of turn
  size_t stage = 0;    // index of the stage it is in
};

class Pipeline;

class Stage {
 public:
  virtual ~Stage() = default;
  // Takes the task; calls pipeline->Leave(task) once it has passed, at once or later.
  virtual void Enter(Pipeline* pipeline, Task task) = 0;
  // Forgets all tasks: the generation is over.
  virtual void Clear() {}
};

class Pipeline {
 public:
  explicit Pipeline(std::vector<std::unique_ptr<Stage>> stages) : stages_(std::move(stages)) {}
  void Begin(Task task) {
    task.stage = 0;
    stages_[0]->Enter(this, std::move(task));
  }
  void Leave(Task task) {
    if (++task.stage < stages_.size()) stages_[task.stage]->Enter(this, std::move(task));
  }
  void Clear() {
    for (auto& stage : stages_) stage->Clear();
  }

 private:
  const std::vector<std::unique_ptr<Stage>> stages_;
};

// Sums the local ranks' contributions of a partition, the most urgent first. A few per turn of the
// loop, so that the network's turn comes soon. Partitions that need no sum pass at once.
class ReduceStage final : public Stage {
 public:
  explicit ReduceStage(EventLoop* loop) : loop_(loop) {}
  void Enter(Pipeline* pipeline, Task task) override;
  void Clear() override { queue_ = {}; }

 private:
  struct Item {
    Task task;
    uint64_t sequence;
  };
  struct Later {
    bool operator()(const Item& a, const Item& b) const {
      if (a.task.priority != b.task.priority) return a.task.priority < b.task.priority;
      return a.sequence > b.sequence;
    }
  };
  void RunSome(Pipeline* pipeline);

  EventLoop* const loop_;
  std::priority_queue<Item, std::vector<Item>, Later> queue_;
  uint64_t next_sequence_ = 0;
  bool scheduled_ = false;
};

// Hands the node's contribution to the link of the partition's owner, whose outbox orders by
// priority.
class PushStage final : public Stage {
 public:
  // `bring`: fetches a contribution that the owner's link cannot read from the GPU; Send is to be
  // called again. `pushed`: after every first push of a contribution.
  PushStage(const NodeIdentity* identity, std::function<void(const Task&)> bring,
            std::function<void(const Task&)> pushed)
      : identity_(identity), bring_(std::move(bring)), pushed_(std::move(pushed)) {}
  void Enter(Pipeline* pipeline, Task task) override;
  // Also for a server that asks again. Does nothing while the owner has not said which round comes
  // next.
  void Send(const Task& task);
  // What this node holds of the partition, to its owner.
  void SendReport(const Tensor& tensor, uint32_t partition, FrameType type);
  // A result that this node holds, to the owner that has asked for it.
  void SendResult(const std::shared_ptr<Tensor>& tensor, uint32_t partition, Round round);
  uint64_t entered() const { return entered_; }
  // Whether links may read contributions from the GPU, where they can.
  void ReadDevices(bool may) { read_devices_ = may; }
  bool reads_devices() const { return read_devices_; }
  // Of contributions that were handed to a NIC to be read from the GPU.
  uint64_t direct_bytes() const { return direct_bytes_; }
  // Contributions that were sent again, for whatever reason.
  uint64_t resent() const { return sent_ > entered_ ? sent_ - entered_ : 0; }
  // Of a frame about the partition, from this node.
  FrameHeader HeaderFor(const Tensor& tensor, uint32_t partition, FrameType type) const;

 private:
  const NodeIdentity* const identity_;
  const std::function<void(const Task&)> bring_;
  const std::function<void(const Task&)> pushed_;
  uint64_t entered_ = 0;
  uint64_t sent_ = 0;
  uint64_t direct_bytes_ = 0;
  bool read_devices_ = true;
};

// Holds the tasks whose contribution is on its way until their result is there.
class PullStage final : public Stage {
 public:
  void Enter(Pipeline* pipeline, Task task) override;
  void Clear() override { waiting_.clear(); }
  // The partition's result is in its slot.
  void Arrived(PartitionId partition);
  // Nothing of the tensor is waited for any more.
  void Forget(const Tensor& tensor);
  // The task that waits for the partition's result, or null.
  const Task* Find(PartitionId partition) const;

 private:
  Pipeline* pipeline_ = nullptr;
  absl::flat_hash_map<PartitionId, Task> waiting_;
};

// Tells the agent of every partition whose result is there.
class DeliverStage final : public Stage {
 public:
  explicit DeliverStage(std::function<void(const Task&)> deliver) : deliver_(std::move(deliver)) {}
  void Enter(Pipeline*, Task task) override { deliver_(task); }

 private:
  const std::function<void(const Task&)> deliver_;
};

}  // namespace addend
