// Servers that join a running job or are drained: partitions move between two rounds.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>

#include "tests/unit/scheduler/cluster_fixture.h"

namespace addend {
namespace {

using testing::HasSubstr;

class ChangeTest : public ClusterTest {
 protected:
  void Begin() {
    nodes_of_ = AddJob("a", 2);
    DeclareAll(nodes_of_, {Tensor("w", {100000}), Tensor("b", {3000})});
  }
  const v1::TensorPlan& plan(int node = 0) const { return nodes_of_[node]->plans.at("w"); }
  static int PartitionsOf(const v1::TensorPlan& plan, const FakeServer& server) {
    return static_cast<int>(std::count(plan.servers().begin(), plan.servers().end(), server.id));
  }
  void Hold(bool acks) {
    for (FakeNode* node : nodes_of_) node->acks = acks;
    if (acks) FollowMoves();
  }
  bool WasHandedOver(const FakeServer& server) const { return !server.handed_over.empty(); }
  void ExpectInForce() {
    EXPECT_EQ(nodes_of_[0]->state, v1::READY);
    EXPECT_EQ(nodes_of_[0]->change, 0u);
    for (const char* name : {"w", "b"}) {
      const v1::TensorPlan& plan = nodes_of_[0]->plans.at(name);
      EXPECT_TRUE(plan.moves().empty());
      EXPECT_EQ(plan.SerializeAsString(), nodes_of_[1]->plans.at(name).SerializeAsString());
      ExpectHeld(plan, nodes_of_[0]->job_id);
    }
  }

  std::vector<FakeNode*> nodes_of_;
};

TEST_F(ChangeTest, JoiningServerGetsItsShareAndNothingElseMoves) {
  Begin();
  const v1::TensorPlan before = plan();
  FakeServer& joined = AddCpuServer();
  ExpectInForce();
  EXPECT_GT(PartitionsOf(plan(), joined), before.servers_size() / 3);
  for (int i = 0; i < before.servers_size(); ++i) {
    if (plan().servers(i) != joined.id) {
      EXPECT_EQ(plan().servers(i), before.servers(i));
    }
  }
  double assigned = 0;
  const v1::GetStatusResponse status = Status();
  for (const auto& share : status.jobs(0).shares()) {
    EXPECT_NEAR(share.assigned(), share.share(), 0.02);
    assigned += share.assigned();
  }
  EXPECT_NEAR(assigned, 1, 1e-9);
}

TEST_F(ChangeTest, OwnersHandOverWhenNewOwnersAndNodesAreReady) {
  Begin();
  Hold(false);
  FakeServer& joined = AddCpuServer();
  EXPECT_EQ(PartitionsOf(plan(), joined), 0) << "nobody follows it yet";
  EXPECT_GT(plan().moves_size(), 0);
  FakeServer& owner = *ServerOf(*nodes_of_[0]);
  EXPECT_FALSE(WasHandedOver(owner));
  AckChange(*nodes_of_[0], /*following=*/false);
  EXPECT_FALSE(WasHandedOver(owner)) << "node 1 is not connected yet";
  AckChange(*nodes_of_[1], /*following=*/false);
  EXPECT_TRUE(WasHandedOver(owner));
  const uint64_t held = owner.held_bytes();
  AckChange(*nodes_of_[0], /*following=*/true);
  EXPECT_EQ(owner.held_bytes(), held) << "node 1 may still ask it for the last result";
  Hold(true);
  EXPECT_LT(owner.held_bytes(), held);
  ExpectInForce();
}

TEST_F(ChangeTest, NodesAreToldWhenTheNewOwnerHasAnswered) {
  Begin();
  FakeServer& joined = AddCpuServer();
  (void)joined;
  FakeServer& slow = AddCpuServer();
  ExpectInForce();
  slow.answers = false;
  ASSERT_TRUE(Drain(joined).ok());
  EXPECT_EQ(nodes_of_[0]->change, 0u);
  EXPECT_TRUE(plan().moves().empty());
  slow.answers = true;
  Answer(&slow);
  ExpectInForce();
  EXPECT_TRUE(joined.drained);
}

TEST_F(ChangeTest, LateAnswerOfAnOwnerToBeWithoutAWatchIsNotTakenForTheAnswerToTheMoves) {
  FakeServer& first = AddCpuServer();
  FakeServer& second = AddCpuServer();
  AddCpuServer();  // of three, the others get more when a server is drained
  Begin();
  second.answers = false;
  DeclareAll(nodes_of_, {Tensor("later", {100000})});
  membership_->WatchBroke(now_, second.watch);
  ASSERT_TRUE(Drain(first).ok());
  Answer(&second);
  EXPECT_TRUE(nodes_of_[0]->plans.contains("later"));
  EXPECT_EQ(nodes_of_[0]->change, 0u) << "it has not been told of the moves to it";
  EXPECT_FALSE(WasHandedOver(first));
  second.answers = true;
  Watch(&second);
  ExpectInForce();
  EXPECT_TRUE(first.drained);
}

TEST_F(ChangeTest, DrainedServerGivesUpItsPartitionsAndIsTold) {
  FakeServer& first = AddCpuServer();
  AddCpuServer();
  Begin();
  ASSERT_GT(PartitionsOf(plan(), first), 0);
  ASSERT_TRUE(Drain(first).ok());
  EXPECT_TRUE(first.drained);
  EXPECT_EQ(first.held_bytes(), 0u);
  EXPECT_EQ(PartitionsOf(plan(), first), 0);
  EXPECT_FALSE(nodes_of_[0]->servers.contains(first.id)) << "so that the links to it are closed";
  ExpectInForce();
  DeclareAll(nodes_of_, {Tensor("later", {100000})});
  EXPECT_EQ(PartitionsOf(nodes_of_[0]->plans.at("later"), first), 0);
  Leave(&first);
  EXPECT_EQ(nodes_of_[0]->state, v1::READY);
}

TEST_F(ChangeTest, ServerWithoutPartitionsIsDrainedAtOnce) {
  FakeServer& server = AddCpuServer();
  ASSERT_TRUE(Drain(server).ok());
  EXPECT_TRUE(server.drained);
}

TEST_F(ChangeTest, DrainOfAnUnknownOrColocatedServerIsRefused) {
  Begin();
  FakeServer nobody;
  nobody.id = 99;
  EXPECT_THAT(std::string(Drain(nobody).message()), HasSubstr("there is no server 99"));
  EXPECT_THAT(std::string(Drain(*ServerOf(*nodes_of_[0])).message()),
              HasSubstr("cannot be drained"));
}

TEST_F(ChangeTest, ServersThatJoinDuringAChangeGetTheirShareAfterwards) {
  Begin();
  Hold(false);
  FakeServer& first = AddCpuServer();
  FakeServer& second = AddCpuServer();
  Hold(true);
  ExpectInForce();
  EXPECT_GT(PartitionsOf(plan(), first), 0);
  EXPECT_GT(PartitionsOf(plan(), second), 0);
}

TEST_F(ChangeTest, RestartedSchedulerRepeatsItsChange) {
  for (const int stage : {0, 1, 2}) {
    SCOPED_TRACE(stage);
    if (stage == 0) Begin();
    Hold(false);
    FakeServer& joined = AddCpuServer();
    if (stage > 0) {
      for (const FakeNode* node : nodes_of_) AckChange(*node, /*following=*/false);
    }
    if (stage > 1) AckChange(*nodes_of_[0], /*following=*/true);
    Restart();
    EXPECT_EQ(PartitionsOf(plan(), joined), 0);
    Hold(true);
    EXPECT_GT(PartitionsOf(plan(), joined), 0);
    ExpectInForce();
  }
}

TEST_F(ChangeTest, LostOwnerToBeLeavesPartitionsAtTheirOwners) {
  Begin();
  const v1::TensorPlan before = plan();
  Hold(false);
  FakeServer& joined = AddCpuServer();
  for (const FakeNode* node : nodes_of_) AckChange(*node, /*following=*/false);
  Kill(&joined);
  Pass(absl::Seconds(6));
  Hold(true);
  ExpectInForce();
  for (int i = 0; i < before.servers_size(); ++i) EXPECT_EQ(plan().servers(i), before.servers(i));
  EXPECT_TRUE(std::any_of(plan().versions().begin(), plan().versions().end(), [](uint64_t version) {
    return version > 0;
  })) << "they recover: some nodes may have followed the one that was lost";
}

TEST_F(ChangeTest, OwnerToBeThatEndsBeforeItHasAnsweredCostsNothing) {
  Begin();
  const v1::TensorPlan before = plan();
  new_servers_answer_ = false;
  FakeServer& joined = AddCpuServer();
  ASSERT_GT(joined.updates.back().jobs(0).reserve_size(), 0);
  Kill(&joined);
  joined.silent = true;
  Pass(absl::Seconds(6));
  ExpectInForce();
  EXPECT_EQ(plan().SerializeAsString(), before.SerializeAsString()) << "nothing was recovered";
}

// The server is needed by nobody, so it does not wait until there is a scheduler again.
TEST_F(ChangeTest, ServerThatEndsWhileThereIsNoSchedulerGetsNothing) {
  Begin();
  const v1::TensorPlan before = plan();
  new_servers_answer_ = false;
  FakeServer& gone = AddCpuServer();
  new_servers_answer_ = true;
  gone.silent = true;
  Restart();
  EXPECT_FALSE(plan().moves().empty()) << "the nodes may have had them from the former scheduler";
  ReportLost(*nodes_of_[0], gone);
  ExpectInForce();
  EXPECT_EQ(plan().SerializeAsString(), before.SerializeAsString()) << "nothing was recovered";
  Restart();  // the next scheduler does not know of the report
  FakeServer& joined = AddCpuServer();
  ExpectInForce();
  EXPECT_GT(PartitionsOf(plan(), joined), 0);
  EXPECT_EQ(PartitionsOf(plan(), gone), 0);
  Watch(&gone);  // it had only been cut off
  ExpectInForce();
  EXPECT_EQ(PartitionsOf(plan(), gone), 0) << "it has not answered";
  gone.answers = true;
  Answer(&gone);
  FollowMoves();
  ExpectInForce();
  EXPECT_GT(PartitionsOf(plan(), gone), 0);
}

TEST_F(ChangeTest, LostOwnerLeavesMovingPartitionsToTheOwnersToBe) {
  // As many CPU servers as nodes sum everything; another takes a part of theirs.
  FakeServer& owner = AddCpuServer();
  AddCpuServer();
  Begin();
  Hold(false);
  FakeServer& joined = AddCpuServer();
  std::vector<uint32_t> moving;
  for (const v1::PartitionMove& move : plan().moves()) {
    if (plan().servers(static_cast<int>(move.partition())) == owner.id) {
      moving.push_back(move.partition());
    }
  }
  ASSERT_FALSE(moving.empty());
  Kill(&owner);
  Pass(absl::Seconds(6));
  Hold(true);
  ExpectInForce();
  for (const uint32_t index : moving) EXPECT_EQ(plan().servers(static_cast<int>(index)), joined.id);
}

TEST_F(ChangeTest, OwnerToBeWithoutRoomGetsNoPartitions) {
  Begin();
  const v1::TensorPlan before = plan();
  FakeServer& joined = AddCpuServer(/*memory_limit=*/1 << 30);
  (void)joined;
  ExpectInForce();
  FakeServer& liar = AddCpuServer(/*memory_limit=*/1 << 30);
  (void)liar;
  ExpectInForce();
  servers_.back()->capacity = servers_.back()->held_bytes() + 4096;
  ASSERT_TRUE(Drain(joined).ok());
  ExpectInForce();
  EXPECT_THAT(Reasons(), HasSubstr("refused tensor 'w'"));
  EXPECT_EQ(nodes_of_[0]->state, v1::READY);
}

TEST_F(ChangeTest, RestoredChangeEndsAlthoughItsOwnerToBeRefuses) {
  Begin();
  const v1::TensorPlan before = plan();
  Hold(false);
  FakeServer& joined = AddCpuServer(/*memory_limit=*/1 << 30);
  for (const FakeNode* node : nodes_of_) AckChange(*node, /*following=*/false);
  joined.answers = false;
  joined.jobs.clear();  // it has lost its reservation
  joined.capacity = 0;
  Restart();
  ASSERT_GT(plan().moves_size(), 0) << "the nodes know the moves from the former scheduler";
  Answer(&joined);
  EXPECT_THAT(Reasons(), HasSubstr("refused tensor 'w'"));
  EXPECT_TRUE(plan().moves().empty()) << "the nodes are told that the moves are given up";
  Hold(true);
  ExpectInForce();
  for (int i = 0; i < before.servers_size(); ++i) EXPECT_EQ(plan().servers(i), before.servers(i));
}

TEST_F(ChangeTest, TensorUndeclaredDuringAChangeLeavesNothingBehind) {
  Begin();
  Hold(false);
  AddCpuServer();
  for (const FakeNode* node : nodes_of_) Undeclare(*node, "w");
  for (const FakeNode* node : nodes_of_) Undeclare(*node, "b");
  Hold(true);
  for (const auto& server : servers_) EXPECT_EQ(server->held_bytes(), 0u);
  EXPECT_EQ(nodes_of_[0]->change, 0u);
}

TEST_F(ChangeTest, MeasurementsOfAJobDoNotAffectOtherJobs) {
  FakeServer& slow = AddCpuServer();
  FakeServer& other = AddCpuServer();
  Begin();
  const std::vector<FakeNode*> others = AddJob("b", 2);
  DeclareAll(others, {Tensor("w", {1 << 20})});
  const auto version = [&](const std::string& name) {
    const auto status = Status();
    for (const auto& job : status.jobs()) {
      if (job.name() == name) return job.plan_version();
    }
    return uint64_t{0};
  };
  const uint64_t first_of_b = version("b");
  const uint64_t first_of_a = version("a");
  for (FakeNode* node : nodes_of_) node->busy = {{slow.id, 0.9}, {other.id, 0.3}};
  for (int i = 0; i < 40; ++i) Pass(absl::Milliseconds(500));
  EXPECT_GT(version("a"), first_of_a);
  EXPECT_EQ(version("b"), first_of_b);
}

TEST_F(ChangeTest, SlowServerGetsLess) {
  FakeServer& slow = AddCpuServer();
  FakeServer& other = AddCpuServer();
  Begin();
  // Another job, so small that at most the slow CPU server has a part of it.
  DeclareAll(AddJob("small", 2), {Tensor("s", {10})});
  const int before = PartitionsOf(plan(), slow);
  for (FakeNode* node : nodes_of_) node->busy = {{slow.id, 0.9}, {other.id, 0.3}};
  const auto speeds = [&] {
    std::map<uint32_t, double> speeds;
    const auto status = Status();
    for (const auto& server : status.servers()) speeds[server.server_id()] = server.speed();
    return speeds;
  };
  for (int i = 0; i < 40 && speeds()[slow.id] == 1; ++i) Pass(absl::Milliseconds(500));
  EXPECT_NEAR(speeds()[slow.id], 1.0 / 3, 0.01);
  EXPECT_EQ(speeds()[other.id], 1);
  EXPECT_LT(PartitionsOf(plan(), slow), before / 2);
  for (FakeNode* node : nodes_of_) node->busy = {{slow.id, 0.5}, {other.id, 0.5}};
  for (int i = 0; i < 40 && speeds()[slow.id] < 0.4; ++i) Pass(absl::Milliseconds(500));
  EXPECT_NEAR(speeds()[slow.id], 0.5, 0.01) << "on trial";
  for (FakeNode* node : nodes_of_) node->busy = {{slow.id, 0.75}, {other.id, 0.5}};
  for (int i = 0; i < 40 && speeds()[slow.id] > 0.45; ++i) Pass(absl::Milliseconds(500));
  EXPECT_NEAR(speeds()[slow.id], 0.5 / std::pow(1.5, 0.75), 0.02) << "that was too much";
  EXPECT_EQ(speeds()[other.id], 1);
  ExpectInForce();

  for (FakeNode* node : nodes_of_) node->busy.clear();
  Kill(&other);
  Pass(absl::Seconds(10));
  EXPECT_EQ(speeds()[slow.id], 1) << "the fastest that is left";
  ExpectInForce();
}

TEST_F(ChangeTest, TimesOfServersThatTheJobDoesNotUseAreNotKept) {
  FakeServer& slow = AddCpuServer();
  FakeServer& other = AddCpuServer();
  Begin();
  const uint64_t version = Status().jobs(0).plan_version();
  // The job uses its servers so little that their times do not matter.
  for (FakeNode* node : nodes_of_) node->busy = {{slow.id, 0.06}, {other.id, 0.02}, {999, 0.9}};
  for (int i = 0; i < 40; ++i) Pass(absl::Milliseconds(500));
  EXPECT_EQ(Status().jobs(0).plan_version(), version);
}

}  // namespace
}  // namespace addend
