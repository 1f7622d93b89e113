// Ranks have left by shutdown() while other nodes wait for their contributions.
#include <gmock/gmock.h>

#include "tests/unit/scheduler/cluster_fixture.h"

namespace addend {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class DeparturesTest : public ClusterTest {
 protected:
  struct Awaited {
    uint32_t tensor = 0;
    std::string name;
    uint64_t round = 0;
  };
  void SetUp() override {
    AddCpuServer();
    nodes_of_ = AddJob("a", 3);
  }
  void Beat(const FakeNode& node, uint32_t departed, const std::vector<Awaited>& awaited = {}) {
    v1::HeartbeatRequest beat;
    *beat.mutable_member() = node.member();
    beat.set_generation(node.generation);
    beat.set_departed_ranks(departed);
    for (const Awaited& one : awaited) {
      v1::AwaitedRound* const round = beat.add_awaited();
      round->set_tensor_id(one.tensor);
      round->set_name(one.name);
      round->set_round(one.round);
    }
    auto [status, decision] = membership_->Heartbeat(now_, beat);
    ASSERT_TRUE(status.ok());
    Apply(std::move(decision));
  }
  static std::vector<std::string> Told(const FakeNode& node) {
    std::vector<std::string> told;
    for (const auto& round : node.updates.back().awaited()) {
      told.push_back(round.name() + " " + std::to_string(round.round()));
    }
    return told;
  }

  std::vector<FakeNode*> nodes_of_;
};

TEST_F(DeparturesTest, AllNodesAreToldOfDepartedRanks) {
  EXPECT_FALSE(nodes_of_[0]->updates.back().departed());
  Beat(*nodes_of_[1], 1);
  for (const FakeNode* node : nodes_of_) EXPECT_TRUE(node->updates.back().departed());
  const size_t updates = nodes_of_[0]->updates.size();
  Beat(*nodes_of_[1], 1);
  EXPECT_EQ(nodes_of_[0]->updates.size(), updates);
}

TEST_F(DeparturesTest, AwaitedRoundIsToldToAllNodesOnce) {
  Beat(*nodes_of_[1], 1);
  Beat(*nodes_of_[0], 0, {{0, "w", 3}});
  EXPECT_THAT(Told(*nodes_of_[1]), ElementsAre("w 3"));
  const size_t updates = nodes_of_[1]->updates.size();
  Beat(*nodes_of_[2], 0, {{0, "w", 3}});
  EXPECT_EQ(nodes_of_[1]->updates.size(), updates);
  Beat(*nodes_of_[2], 0, {{0, "w", 4}});
  EXPECT_THAT(Told(*nodes_of_[1]), ElementsAre("w 3", "w 4"));
}

TEST_F(DeparturesTest, PlannedTensorIsAwaitedByItsNumber) {
  Beat(*nodes_of_[1], 1);
  Beat(*nodes_of_[0], 0, {{0, "w", 1}});
  DeclareAll(nodes_of_, {Tensor("w", {8})});
  ASSERT_TRUE(nodes_of_[0]->plans.contains("w"));
  EXPECT_THAT(Told(*nodes_of_[1]), IsEmpty());
  for (const FakeNode* node : nodes_of_) Undeclare(*node, "w");
  Beat(*nodes_of_[0], 0, {{0, "v", 1}});
  EXPECT_THAT(Told(*nodes_of_[1]), ElementsAre("v 1"));
}

TEST_F(DeparturesTest, AwaitedRoundsBeyondTheLimitAreLeftOut) {
  Beat(*nodes_of_[1], 1);
  std::vector<Awaited> many = {{0, std::string(4097, 'a'), 1}};
  for (uint32_t i = 1; i <= 40; ++i) many.push_back({i, "w", i});
  Beat(*nodes_of_[0], 0, many);
  EXPECT_EQ(Told(*nodes_of_[1]).size(), 15u);
  for (uint64_t i = 0; i < 300; ++i) Beat(*nodes_of_[0], 0, {{7, "x", i}});
  EXPECT_EQ(Told(*nodes_of_[1]).size(), 256u);
}

TEST_F(DeparturesTest, NewGenerationForgetsDepartures) {
  Beat(*nodes_of_[1], 1);
  Beat(*nodes_of_[0], 0, {{0, "w", 3}});
  for (const FakeNode* node : nodes_of_) Idle(*node);
  for (FakeNode* node : nodes_of_) ReportTrainers(*node);
  Pass(absl::Seconds(2));
  ASSERT_EQ(nodes_of_[0]->state, v1::READY);
  EXPECT_FALSE(nodes_of_[0]->updates.back().departed());
  EXPECT_THAT(Told(*nodes_of_[0]), IsEmpty());
}

}  // namespace
}  // namespace addend
