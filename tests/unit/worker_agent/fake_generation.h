// The objects of a generation on a FakeNode, put together by hand: a test takes those it needs.
// DeclaredTensorTest is the fixture of tests about a declared tensor.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "services/worker_agent/host_source.h"
#include "services/worker_agent/integrity.h"
#include "services/worker_agent/plan_follower.h"
#include "services/worker_agent/round_runner.h"
#include "services/worker_agent/servers.h"
#include "tests/unit/worker_agent/fake_node.h"

namespace addend {

class FakeGeneration final : private ServerEvents, private GenerationState::Listener {
 public:
  explicit FakeGeneration(FakeNode* fake)
      : node(*fake),
        context(node.context()),
        ranks(node.identity.node, node.options.local_size, node.options.hostname),
        tensors(node.identity.generation, node.options.num_nodes, &ranks, &node.reports,
                &node.slots),
        state(context, &ranks, &tensors, this),
        servers(context, &tensors, &state, this),
        integrity(context, &ranks, &state, &nodes, &servers),
        rounds(context, &ranks, &tensors, &state, &nodes, &servers, &integrity),
        host_source(&node.loop, &rounds),
        plan(context, &tensors, &state, &servers, &rounds) {
    rounds.Use(&host_source);
    for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
      trainers.push_back(std::make_unique<FakeTrainer>(100 + rank));
      ranks.Enter(rank, trainers.back().get());
    }
  }
  ~FakeGeneration() override {
    servers.Retire(absl::CancelledError("the test ends"));
    node.loop.Settle();
  }

  // All local ranks declare the tensor.
  std::shared_ptr<NodeTensor> Declare(const TensorShape& shape) {
    std::shared_ptr<NodeTensor> tensor, conflicting;
    for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
      tensor = *tensors.Attach(rank, shape, &conflicting);
    }
    tensors.DeclareFront(shape.name);
    return tensor;
  }
  // The scheduler's plan: a partition of `elements` on each of `owners`.
  static v1::TensorPlan PlanOf(uint32_t id, const std::string& name, uint64_t elements,
                               const std::vector<uint32_t>& owners) {
    v1::TensorPlan plan;
    plan.set_tensor_id(id);
    plan.mutable_tensor()->set_name(name);
    plan.set_partition_elements(elements);
    for (const uint32_t owner : owners) {
      plan.add_servers(owner);
      plan.add_shards(0);
    }
    return plan;
  }
  void Apply(const v1::TensorPlan& tensor_plan, uint64_t change = 0) {
    v1::NodeUpdate update;
    update.set_change(change);
    *update.add_tensors() = tensor_plan;
    plan.Apply(update);
  }
  // The rank pushes the values in the tensor's open round.
  absl::Status Push(const std::shared_ptr<NodeTensor>& tensor, uint32_t rank,
                    const std::vector<float>& values, int32_t priority = 0) {
    WriteFloats(tensor->contributions[rank]->memory(), values);
    return rounds.OnPush(tensor, trainers[rank].get(),
                         {.tensor = tensor->number,
                          .round = tensor->rounds.round().value(),
                          .priority = priority,
                          .empty = values.empty()});
  }
  // A frame of an owner about a partition of the tensor's open round.
  FrameHeader FrameOf(FrameType type, const NodeTensor& tensor, uint32_t partition) const {
    FrameHeader header;
    header.type = type;
    header.job = node.identity.job;
    header.generation = node.identity.generation;
    header.partition = PartitionId(tensor.id, partition);
    header.round = tensor.rounds.round();
    return header;
  }

  FakeNode& node;
  const NodeContext context;
  NodeCounts nodes{.taking_part = 2, .waiting = 0};
  LocalRanks ranks;
  TensorTable tensors;
  GenerationState state;
  Servers servers;
  Integrity integrity;
  RoundRunner rounds;
  HostSource host_source;
  PlanFollower plan;
  std::vector<std::unique_ptr<FakeTrainer>> trainers;
  std::vector<std::string> events;  // "failed decided", "open", "lost ..."

 private:
  MutableBytes RoomForResult(const ServerLink* link, const FrameHeader& header) override {
    return rounds.RoomForResult(link, header);
  }
  MutableBytes RoomForStamp(const ServerLink* link, const FrameHeader& header) override {
    return rounds.RoomForStamp(link, header);
  }
  void OnStamp(const ServerLink* link, const FrameHeader& header, Bytes stamp) override {
    rounds.OnStamp(link, header, stamp);
  }
  absl::Status OnResult(const ServerLink* link, const FrameHeader& header,
                        const EncodedBytes& result) override {
    return rounds.OnResult(link, header, result);
  }
  void OnSendAgain(const ServerLink* link, const FrameHeader& header) override {
    rounds.OnSendAgain(link, header);
  }
  void OnMoved(const ServerLink* link, const FrameHeader& header) override {
    plan.OnMoved(link, header);
  }
  void OnRecovered(const ServerLink* link, const FrameHeader& header) override {
    plan.OnRecovered(link, header);
  }
  void OnAborted(const ServerLink* link, const FrameHeader& header) override {
    rounds.OnAborted(link, header);
  }
  void OnLinkOpen(ServerLink* link, Incarnation server) override {
    const bool known = servers.OnOpen(link, server);
    events.push_back(known ? "open" : "stranger");
    if (known) plan.OnLinkOpen(link);
  }
  void OnLinkLost(ServerLink* link, const absl::Status& why) override {
    events.push_back("lost");
    servers.OnLost(link, why);
  }
  void OnFailed(bool decided) override { events.push_back(decided ? "failed, decided" : "failed"); }
};

// A generation whose local ranks have declared the tensor "t", which has two elements and no plan.
class DeclaredTensorTest : public ::testing::Test {
 protected:
  FakeNode node_;
  FakeGeneration generation_{&node_};
  const std::shared_ptr<NodeTensor> tensor_ = generation_.Declare(Floats("t", 2));
};

}  // namespace addend
