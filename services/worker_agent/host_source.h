// Contributions in the trainers' segments: a single rank's data is sent from its segment, several
// ranks' data is summed first. Belongs to the agent's core thread.
#pragma once

#include <cstdint>
#include <memory>
#include <queue>
#include <string>
#include <vector>

#include "lib/shard/task_loop.h"
#include "services/worker_agent/contribution_source.h"

namespace addend {

// Sums the most urgent partitions first, a few in each turn of the loop, so that the network's turn
// comes soon. Partitions without a sum are ready at once.
class HostSource final : public ContributionSource {
 public:
  // Both outlive the source.
  HostSource(TaskLoop* loop, Listener* listener) : loop_(loop), listener_(listener) {}

  void OnPush(const std::shared_ptr<NodeTensor>&, uint32_t, bool) override {}
  void Begin(PartitionPush push) override;
  bool Reads(const PartitionPush&) override { return true; }
  bool MayEnd(const NodeTensor&, uint32_t, bool) const override { return true; }
  void Bring(const std::shared_ptr<NodeTensor>&, uint32_t, Then then) override { then(true); }
  void OnDelivered(const NodeTensor&, uint32_t) override {}
  std::vector<uint32_t> RanksIn(const NodeTensor&, uint32_t segment) const override {
    return {segment};
  }
  std::string WhyOpen(const NodeTensor&) const override { return ""; }
  void Forget(const NodeTensor&) override {}
  void Stop() override { queue_ = {}; }

 private:
  struct Item {
    PartitionPush push;
    uint64_t sequence;
  };
  struct Later {
    bool operator()(const Item& a, const Item& b) const {
      if (a.push.priority != b.push.priority) return a.push.priority < b.push.priority;
      return a.sequence > b.sequence;
    }
  };
  void SumSome();

  TaskLoop* const loop_;
  Listener* const listener_;
  std::priority_queue<Item, std::vector<Item>, Later> queue_;
  uint64_t next_sequence_ = 0;
  bool scheduled_ = false;
};

}  // namespace addend
