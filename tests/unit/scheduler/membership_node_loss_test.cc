// A node of a running job is lost: the generation fails, or goes on with the others.
#include <gmock/gmock.h>

#include "lib/base/failure.h"
#include "tests/unit/scheduler/cluster_fixture.h"

namespace addend {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class NodeLossTest : public ClusterTest {
 protected:
  void Begin(const std::string& on_node_loss, uint32_t num_nodes = 3) {
    on_node_loss_ = on_node_loss;
    nodes_of_ = AddJob("a", num_nodes);
    DeclareAll(nodes_of_, {Tensor("w", {100000})});
    ASSERT_TRUE(nodes_of_[0]->plans.contains("w"));
  }
  const v1::TensorPlan& plan(int node = 0) { return nodes_of_[node]->plans.at("w"); }
  static std::vector<uint32_t> LostIn(const FakeNode& node) {
    const auto& lost = node.updates.back().lost_nodes();
    return {lost.begin(), lost.end()};
  }
  // Heartbeat of a node on which no round of the failed generation can end any more.
  void Decide(const FakeNode& node) {
    v1::HeartbeatRequest beat;
    *beat.mutable_member() = node.member();
    beat.set_generation(node.generation);
    beat.set_decided(true);
    auto [status, decision] = membership_->Heartbeat(now_, beat);
    ASSERT_TRUE(status.ok());
    Apply(std::move(decision));
  }
  static bool AllDecided(const FakeNode& node) { return node.updates.back().decided(); }
  FakeServer::HeldJob& JobAt(FakeServer& server) { return server.jobs.at(nodes_of_[0]->job_id); }

  std::vector<FakeNode*> nodes_of_;
};

TEST_F(NodeLossTest, FailedGenerationStillGetsNewOwnersAndItsServersSealNothing) {
  FakeServer& server = AddCpuServer();
  Begin("fail");
  FakeServer* const dead = ServerOf(*nodes_of_[1]);
  Kill(nodes_of_[1]);
  Pass(absl::Seconds(6));
  EXPECT_EQ(nodes_of_[0]->state, v1::FAILED);
  EXPECT_TRUE(JobAt(server).failed);
  EXPECT_THAT(JobAt(server).lost_nodes, ElementsAre(1));
  for (const uint32_t owner : plan().servers()) EXPECT_NE(owner, dead->id);
  ExpectHeld(plan(), nodes_of_[0]->job_id);
}

TEST_F(NodeLossTest, ShrinkingJobGoesOnWithoutALostNode) {
  FakeServer& server = AddCpuServer();
  Begin("shrink");
  FakeServer* const dead = ServerOf(*nodes_of_[1]);
  Kill(nodes_of_[1]);
  Pass(absl::Seconds(6));
  for (const int left : {0, 2}) {
    EXPECT_EQ(nodes_of_[left]->state, v1::READY);
    EXPECT_THAT(LostIn(*nodes_of_[left]), ElementsAre(1));
    for (const uint32_t owner : plan(left).servers()) EXPECT_NE(owner, dead->id);
  }
  EXPECT_FALSE(JobAt(server).failed);
  EXPECT_THAT(JobAt(server).lost_nodes, ElementsAre(1));
  EXPECT_THAT(Reasons(), HasSubstr("goes on with 2 of 3 nodes"));
  ExpectHeld(plan(), nodes_of_[0]->job_id);
}

TEST_F(NodeLossTest, LostNodeIsNotWaitedForInDeclarations) {
  Begin("shrink");
  for (const int left : {0, 2}) {
    Declare(*nodes_of_[left], {Tensor("late", {10})});
    Undeclare(*nodes_of_[left], "w");
  }
  EXPECT_FALSE(nodes_of_[0]->plans.contains("late"));
  EXPECT_TRUE(nodes_of_[0]->plans.contains("w"));
  Kill(nodes_of_[1]);
  Pass(absl::Seconds(6));
  EXPECT_TRUE(nodes_of_[0]->plans.contains("late"));
  EXPECT_FALSE(nodes_of_[0]->plans.contains("w"));
}

TEST_F(NodeLossTest, ServersJoinAfterTheLossOfANode) {
  Begin("shrink");
  Kill(nodes_of_[1]);
  Pass(absl::Seconds(6));
  FakeServer& server = AddCpuServer();
  Pass(absl::Seconds(2));
  EXPECT_GT(server.held_bytes(), 0u);
  ExpectHeld(plan(), nodes_of_[0]->job_id);
}

TEST_F(NodeLossTest, AccusedNodeIsLostWhenItsConnectionBreaks) {
  Begin("shrink");
  ReportLost(*nodes_of_[0], *ServerOf(*nodes_of_[1]));
  EXPECT_EQ(LostIn(*nodes_of_[0]).size(), 0u) << "it is connected";
  Kill(nodes_of_[1]);
  Pass(absl::Milliseconds(500));
  EXPECT_THAT(LostIn(*nodes_of_[0]), ElementsAre(1));
  EXPECT_THAT(Reasons(),
              HasSubstr("node 1 (on gpu1, rank 1) was lost: node 0 (on gpu0) cannot reach it"));
}

TEST_F(NodeLossTest, RepeatedAccusationsGiveANodeNoNewLease) {
  Begin("shrink");
  for (int i = 0; i < 4; ++i) {
    ReportLost(*nodes_of_[0], *ServerOf(*nodes_of_[1]));
    Pass(absl::Seconds(1));
  }
  EXPECT_EQ(LostIn(*nodes_of_[0]).size(), 0u) << "it is connected, and has a lease's time";
  ReportLost(*nodes_of_[0], *ServerOf(*nodes_of_[1]));
  Pass(absl::Seconds(1));
  EXPECT_THAT(LostIn(*nodes_of_[0]), ElementsAre(1));
}

TEST_F(NodeLossTest, NodeThatAsksAfterAPauseIsAnsweredWhileItTakesPart) {
  Begin("shrink");
  v1::HeartbeatRequest beat;
  *beat.mutable_member() = nodes_of_[1]->member();
  beat.set_generation(nodes_of_[1]->generation);
  beat.set_pause(3);
  const size_t updates = nodes_of_[0]->updates.size();
  auto [status, decision] = membership_->Heartbeat(now_, beat);
  ASSERT_TRUE(status.ok());
  Apply(std::move(decision));
  EXPECT_EQ(nodes_of_[1]->updates.back().confirmed_pause(), 3u);
  EXPECT_EQ(nodes_of_[1]->updates.back().state(), v1::READY);
  EXPECT_EQ(nodes_of_[0]->updates.size(), updates);
  Kill(nodes_of_[1]);
  Pass(absl::Seconds(6));
  EXPECT_EQ(membership_->Heartbeat(now_, beat).answer.code(), absl::StatusCode::kNotFound);
}

TEST_F(NodeLossTest, AccusationThatIsTakenBackCostsNothing) {
  Begin("shrink");
  ReportLost(*nodes_of_[0], *ServerOf(*nodes_of_[1]));
  Pass(absl::Seconds(3));
  ReportReached(*nodes_of_[0], *ServerOf(*nodes_of_[1]));
  Pass(absl::Seconds(10));
  EXPECT_EQ(LostIn(*nodes_of_[0]).size(), 0u);
  ReportLost(*nodes_of_[2], *ServerOf(*nodes_of_[1]));
  Pass(absl::Seconds(4));
  EXPECT_EQ(LostIn(*nodes_of_[0]).size(), 0u) << "the second accusation has a lease of its own";
}

TEST_F(NodeLossTest, NodeTakesBackItsOwnAccusationOnly) {
  Begin("shrink");
  ReportLost(*nodes_of_[0], *ServerOf(*nodes_of_[1]));
  ReportReached(*nodes_of_[2], *ServerOf(*nodes_of_[1]));
  Pass(absl::Seconds(6));
  EXPECT_THAT(LostIn(*nodes_of_[0]), ElementsAre(1));
}

TEST_F(NodeLossTest, NodesThatCannotReachEachOtherDoNotBothStay) {
  Begin("fail");
  ReportLost(*nodes_of_[0], *ServerOf(*nodes_of_[1]));
  ReportLost(*nodes_of_[1], *ServerOf(*nodes_of_[0]));
  Pass(absl::Seconds(4));
  EXPECT_EQ(nodes_of_[2]->state, v1::READY);
  Pass(absl::Seconds(2));
  EXPECT_EQ(nodes_of_[2]->state, v1::FAILED);
}

TEST_F(NodeLossTest, NodeWithALostTrainerWaitsForTheNextGeneration) {
  Begin("shrink");
  Fail(*nodes_of_[1], "rank 1 ended without shutdown", FailureKind::kPeerLost);
  EXPECT_EQ(nodes_of_[1]->state, v1::FAILED);
  EXPECT_EQ(nodes_of_[1]->failed_kind, TraitsOf(FailureKind::kPeerLost).name);
  EXPECT_EQ(nodes_of_[0]->state, v1::READY);
  // Nothing that it says concerns the others any more.
  Fail(*nodes_of_[1], "it stalls", FailureKind::kStalled);
  ReportLost(*nodes_of_[1], *ServerOf(*nodes_of_[0]));
  Pass(absl::Seconds(10));
  EXPECT_EQ(nodes_of_[0]->state, v1::READY);
  EXPECT_THAT(LostIn(*nodes_of_[0]), ElementsAre(1));

  Idle(*nodes_of_[1]);
  EXPECT_EQ(nodes_of_[1]->state, v1::FORMING);
  EXPECT_EQ(nodes_of_[0]->updates.back().waiting_nodes(), 0u) << "its trainers are not there yet";
  ReportTrainers(*nodes_of_[1]);
  EXPECT_EQ(nodes_of_[0]->updates.back().waiting_nodes(), 1u);
  Idle(*nodes_of_[0]);
  Idle(*nodes_of_[2]);
  for (const FakeNode* node : nodes_of_) {
    EXPECT_EQ(node->state, v1::READY);
    EXPECT_EQ(node->generation, 2u);
    EXPECT_TRUE(LostIn(*node).empty());
  }
}

TEST_F(NodeLossTest, RestartedNodeWaitsWhileTheOthersGoOn) {
  Begin("shrink");
  Kill(nodes_of_[1]);
  FakeNode& again = AddNode("a", 1, 3);
  EXPECT_EQ(again.state, v1::FORMING);
  EXPECT_EQ(nodes_of_[0]->state, v1::READY);
  EXPECT_EQ(nodes_of_[0]->updates.back().waiting_nodes(), 1u);
  for (const uint32_t owner : plan().servers()) EXPECT_NE(owner, ServerOf(again)->id);
  Idle(*nodes_of_[0]);
  Idle(*nodes_of_[2]);
  EXPECT_EQ(again.state, v1::READY);
  EXPECT_EQ(again.generation, 2u);
}

TEST_F(NodeLossTest, RestartedSchedulerKnowsTheGoneNodes) {
  Begin("shrink");
  Kill(nodes_of_[1]);
  Pass(absl::Seconds(6));
  Restart();
  EXPECT_EQ(nodes_of_[0]->state, v1::READY);
  EXPECT_THAT(LostIn(*nodes_of_[0]), ElementsAre(1));
  for (const int left : {0, 2}) Declare(*nodes_of_[left], {Tensor("late", {10})});
  EXPECT_TRUE(nodes_of_[2]->plans.contains("late"));
}

TEST_F(NodeLossTest, NodeWithALostTrainerStaysInOpenRoundsOfAFailedGeneration) {
  FakeServer& server = AddCpuServer();
  Begin("fail");
  Fail(*nodes_of_[1], "rank 1 ended without shutdown", FailureKind::kPeerLost);
  for (const FakeNode* node : nodes_of_) EXPECT_EQ(node->state, v1::FAILED);
  EXPECT_TRUE(JobAt(server).failed);
  EXPECT_TRUE(JobAt(server).lost_nodes.empty());
}

TEST_F(NodeLossTest, NodesAreToldWhenAllOfThemHaveTheOwnersDecisions) {
  Begin("fail");
  Decide(*nodes_of_[1]);  // before its own failure is reported
  Fail(*nodes_of_[1], "rank 1 ended without shutdown", FailureKind::kPeerLost);
  Decide(*nodes_of_[0]);
  for (const FakeNode* node : nodes_of_) EXPECT_FALSE(AllDecided(*node));
  Decide(*nodes_of_[2]);
  for (const FakeNode* node : nodes_of_) {
    EXPECT_TRUE(AllDecided(*node));
    EXPECT_EQ(node->updates.back().state(), v1::FAILED);
  }
  const size_t updates = nodes_of_[0]->updates.size();
  Decide(*nodes_of_[2]);
  EXPECT_EQ(nodes_of_[0]->updates.size(), updates) << "once";
  for (const FakeNode* node : nodes_of_) Idle(*node);
  EXPECT_FALSE(AllDecided(*nodes_of_[0])) << "of the next generation";
}

TEST_F(NodeLossTest, LostNodeAndIdleNodeHaveNothingToDecide) {
  Begin("fail");
  Fail(*nodes_of_[1], "rank 1 ended without shutdown", FailureKind::kPeerLost);
  Decide(*nodes_of_[0]);
  Idle(*nodes_of_[1]);
  EXPECT_FALSE(AllDecided(*nodes_of_[0]));
  Kill(nodes_of_[2]);
  Pass(absl::Seconds(6));
  EXPECT_TRUE(AllDecided(*nodes_of_[0]));
}

TEST_F(NodeLossTest, RestartedSchedulerHearsAgainWhichNodesHaveTheOwnersDecisions) {
  Begin("fail");
  Fail(*nodes_of_[1], "rank 1 ended without shutdown", FailureKind::kPeerLost);
  Decide(*nodes_of_[1]);
  Restart();
  for (const int node : {0, 2}) Decide(*nodes_of_[node]);
  EXPECT_FALSE(AllDecided(*nodes_of_[0]));
  Decide(*nodes_of_[1]);
  EXPECT_TRUE(AllDecided(*nodes_of_[0]));
}

TEST_F(NodeLossTest, GenerationFailsWhenItsLastNodeIsLost) {
  Begin("shrink", 2);
  Kill(nodes_of_[1]);
  Pass(absl::Seconds(6));
  EXPECT_EQ(nodes_of_[0]->state, v1::READY) << "one is left";
  Fail(*nodes_of_[0], "rank 0 ended without shutdown", FailureKind::kPeerLost);
  EXPECT_EQ(nodes_of_[0]->state, v1::FAILED);
}

TEST_F(NodeLossTest, RestartedColocatedServerEndsItsFormerNode) {
  Begin("shrink");
  // Tensors that the other nodes have undeclared end with the node.
  for (const int left : {0, 2}) Undeclare(*nodes_of_[left], "w");
  DeclareAll(nodes_of_, {Tensor("v", {100000})});
  Kill(nodes_of_[1]);
  FakeNode& again = AddNode("a", 1, 3);  // registers its server first
  EXPECT_EQ(again.state, v1::FORMING);
  EXPECT_EQ(nodes_of_[0]->state, v1::READY);
  EXPECT_FALSE(nodes_of_[0]->plans.contains("w"));
  ExpectHeld(nodes_of_[0]->plans.at("v"), nodes_of_[0]->job_id);
}

TEST_F(NodeLossTest, NodeThatMostOthersCannotReachIsLostAndItsAccusationsEnd) {
  Begin("shrink");
  for (const int other : {0, 2}) {
    ReportLost(*nodes_of_[1], *ServerOf(*nodes_of_[other]));
    ReportLost(*nodes_of_[other], *ServerOf(*nodes_of_[1]));
  }
  Pass(absl::Seconds(20));
  for (const int left : {0, 2}) {
    EXPECT_EQ(nodes_of_[left]->state, v1::READY);
    EXPECT_THAT(LostIn(*nodes_of_[left]), ElementsAre(1));
  }
}

TEST_F(NodeLossTest, IdleNodeIsToldOfNewOwners) {
  Begin("fail");
  FakeServer* const dead = ServerOf(*nodes_of_[1]);
  Fail(*nodes_of_[2], "it stalls", FailureKind::kStalled);
  Idle(*nodes_of_[0]);
  EXPECT_EQ(nodes_of_[0]->state, v1::FORMING);
  Kill(nodes_of_[1]);
  Pass(absl::Seconds(6));
  EXPECT_EQ(nodes_of_[2]->state, v1::FAILED);
  for (const int left : {0, 2}) {
    for (const uint32_t owner : plan(left).servers()) EXPECT_NE(owner, dead->id);
  }
}

TEST_F(NodeLossTest, NodeThatLeftWhileWaitingIsNotCounted) {
  Begin("shrink");
  Kill(nodes_of_[1]);
  FakeNode& again = AddNode("a", 1, 3);
  EXPECT_EQ(nodes_of_[0]->updates.back().waiting_nodes(), 1u);
  Kill(&again);
  Pass(absl::Seconds(6));
  EXPECT_EQ(nodes_of_[0]->updates.back().waiting_nodes(), 0u);
}

}  // namespace
}  // namespace addend
