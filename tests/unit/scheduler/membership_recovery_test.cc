// Servers that are lost in the middle of a job: their partitions find new owners.
#include <gmock/gmock.h>

#include <algorithm>

#include "lib/base/failure.h"
#include "tests/unit/scheduler/cluster_fixture.h"

namespace addend {
namespace {

using testing::HasSubstr;

class RecoveryTest : public ClusterTest {
 protected:
  // A job of two nodes that has planned a tensor.
  const v1::TensorPlan& Begin() {
    nodes_of_ = AddJob("a", 2);
    DeclareAll(nodes_of_, {Tensor("w", {100000})});
    return plan();
  }
  // Begins, and loses the server; the new owner beside node 1 does not answer.
  FakeServer& LoseWithASlowHeir(FakeServer* lost) {
    Begin();
    FakeServer& slow = *ServerOf(*nodes_of_[1]);
    slow.answers = false;
    Kill(lost);
    Pass(absl::Seconds(6));
    EXPECT_GT(PartitionsOf(plan(), lost->id), 0);
    return slow;
  }
  const v1::TensorPlan& plan(int node = 0) const { return nodes_of_[node]->plans.at("w"); }
  static int PartitionsOf(const v1::TensorPlan& plan, uint32_t server) {
    return static_cast<int>(std::count(plan.servers().begin(), plan.servers().end(), server));
  }

  std::vector<FakeNode*> nodes_of_;
};

TEST_F(RecoveryTest, PartitionsOfALostServerGoToOthersAndAllOthersStay) {
  FakeServer& lost = AddCpuServer();
  AddCpuServer();
  const v1::TensorPlan before = Begin();
  const uint64_t version = nodes_of_[0]->plan_version;
  ASSERT_GT(PartitionsOf(before, lost.id), 0);
  Kill(&lost);
  Pass(absl::Seconds(6));
  EXPECT_EQ(nodes_of_[0]->state, v1::READY);
  EXPECT_GT(nodes_of_[0]->plan_version, version);
  EXPECT_EQ(PartitionsOf(plan(), lost.id), 0);
  EXPECT_EQ(plan(0).SerializeAsString(), plan(1).SerializeAsString());
  for (int i = 0; i < before.servers_size(); ++i) {
    const bool moved = before.servers(i) == lost.id;
    EXPECT_EQ(plan().versions(i), moved ? nodes_of_[0]->plan_version : 0) << "partition " << i;
    if (!moved) {
      EXPECT_EQ(plan().servers(i), before.servers(i));
      EXPECT_EQ(plan().shards(i), before.shards(i));
    }
  }
  EXPECT_FALSE(nodes_of_[0]->servers.contains(lost.id)) << "so that its link is closed";
  ExpectHeld(plan(), nodes_of_[0]->job_id);
}

TEST_F(RecoveryTest, NodesAreToldWhenEveryNewOwnerHasAnswered) {
  FakeServer& lost = AddCpuServer();
  FakeServer& slow = LoseWithASlowHeir(&lost);
  slow.answers = true;
  Answer(&slow);
  EXPECT_EQ(PartitionsOf(plan(), lost.id), 0);
}

// The simulator has found it: the scheduler died of it.
TEST_F(RecoveryTest, ServerIsLostWhileItReservesOneTensorAndSumsAnother) {
  FakeServer& lost = AddCpuServer();
  FakeServer& other = AddCpuServer();
  Begin();
  ASSERT_GT(PartitionsOf(plan(), lost.id), 0);
  other.answers = false;
  DeclareAll(nodes_of_, {Tensor("second", {100000})});
  Kill(&lost);
  Pass(absl::Seconds(6));
  other.answers = true;
  Answer(&other);
  Pass(absl::Seconds(1));
  ASSERT_TRUE(nodes_of_[0]->plans.contains("second"));
  EXPECT_EQ(PartitionsOf(nodes_of_[0]->plans.at("second"), lost.id), 0);
  EXPECT_EQ(PartitionsOf(plan(), lost.id), 0);
}

TEST_F(RecoveryTest, AnswerToAnEarlierRecoveryDoesNotEndALaterRecovery) {
  FakeServer& first = AddCpuServer();
  FakeServer& second = AddCpuServer();
  Begin();
  FakeServer& heir = *ServerOf(*nodes_of_[1]);
  heir.answers = false;
  const size_t before = heir.updates.size();
  ReportLost(*nodes_of_[0], first);
  ReportLost(*nodes_of_[0], second);
  ASSERT_GE(heir.updates.size(), before + 2);
  for (size_t i = before; i < heir.updates.size(); ++i) {
    EXPECT_GT(PartitionsOf(plan(), second.id), 0) << "told before update " << i << " was answered";
    v1::AckReservationRequest answer = heir.Take(heir.updates[i]);
    *answer.mutable_member() = heir.member();
    auto [status, decision] = membership_->AckReservation(now_, answer);
    ASSERT_TRUE(status.ok());
    Apply(std::move(decision));
  }
  EXPECT_EQ(PartitionsOf(plan(), first.id) + PartitionsOf(plan(), second.id), 0);
  ExpectHeld(plan(), nodes_of_[0]->job_id);
}

TEST_F(RecoveryTest, NewOwnerThatIsLostBeforeItAnswersIsReplaced) {
  FakeServer& lost = AddCpuServer();
  Begin();
  FakeServer& next = AddCpuServer();
  next.answers = false;
  Kill(&lost);
  Pass(absl::Seconds(6));
  ASSERT_FALSE(next.updates.back().jobs(0).reserve().empty());
  Kill(&next);
  Pass(absl::Seconds(6));
  EXPECT_EQ(nodes_of_[0]->state, v1::READY);
  EXPECT_EQ(PartitionsOf(plan(), lost.id) + PartitionsOf(plan(), next.id), 0);
  ExpectHeld(plan(), nodes_of_[0]->job_id);
}

// FakeNode checks that it knows the servers of every plan.
TEST_F(RecoveryTest, NodesAreToldOfAnOwnerThatRecoversOtherPartitionsMeanwhile) {
  FakeServer& one = AddCpuServer();
  FakeServer& two = AddCpuServer();
  nodes_of_ = AddJob("a", 2, /*colocated=*/false);
  DeclareAll(nodes_of_, {Tensor("w", {10})});
  FakeServer& lost = plan().servers(0) == one.id ? one : two;
  FakeServer& heir = plan().servers(0) == one.id ? two : one;
  heir.answers = false;
  Kill(&lost);
  Pass(absl::Seconds(6));
  ASSERT_FALSE(heir.updates.back().jobs(0).reserve().empty());
  ASSERT_FALSE(nodes_of_[0]->servers.contains(heir.id));
  const size_t recovery = heir.updates.size();
  DeclareAll(nodes_of_, {Tensor("second", {5000000})});
  ASSERT_GT(heir.updates.size(), recovery);
  v1::AckReservationRequest answer = heir.Take(heir.updates.back());  // not to the recovery
  *answer.mutable_member() = heir.member();
  auto [status, decision] = membership_->AckReservation(now_, answer);
  ASSERT_TRUE(status.ok());
  Apply(std::move(decision));
  ASSERT_TRUE(nodes_of_[0]->plans.contains("second"));
  EXPECT_GT(PartitionsOf(nodes_of_[0]->plans.at("second"), heir.id), 0);
}

// The simulator has found it: the job failed, though others had room.
TEST_F(RecoveryTest, NewOwnerWithoutRoomIsReplaced) {
  FakeServer& lost = AddCpuServer(/*memory_limit=*/1 << 30);
  FakeServer& next = AddCpuServer(/*memory_limit=*/1 << 30);
  AddCpuServer(/*memory_limit=*/1 << 30);
  nodes_of_ = AddJob("a", 2, /*colocated=*/false);
  DeclareAll(nodes_of_, {Tensor("w", {100000})});
  next.capacity = next.held_bytes();
  Kill(&lost);
  Pass(absl::Seconds(6));
  EXPECT_THAT(Reasons(), HasSubstr("it has no room for what it took over of tensor 'w'"));
  EXPECT_EQ(nodes_of_[0]->state, v1::READY);
  EXPECT_EQ(PartitionsOf(plan(), lost.id) + PartitionsOf(plan(), next.id), 0);
  ExpectHeld(plan(), nodes_of_[0]->job_id);
}

TEST_F(RecoveryTest, RestartedSchedulerRepeatsItsRecovery) {
  FakeServer& lost = AddCpuServer();
  FakeServer& slow = LoseWithASlowHeir(&lost);
  slow.answers = true;
  Restart();
  EXPECT_EQ(PartitionsOf(plan(0), lost.id), 0);
  EXPECT_EQ(plan(0).SerializeAsString(), plan(1).SerializeAsString());
  ExpectHeld(plan(), nodes_of_[0]->job_id);
}

TEST_F(RecoveryTest, NodeThatCannotReachAServerNeedNotWaitForItsLease) {
  FakeServer& lost = AddCpuServer();
  Begin();
  lost.silent = true;
  ReportLost(*nodes_of_[1], lost);
  EXPECT_EQ(PartitionsOf(plan(), lost.id), 0);
  EXPECT_THAT(Reasons(), HasSubstr("node 1 (on"));
  ReportLost(*nodes_of_[0], lost);  // the other node's report comes too late to matter
  EXPECT_EQ(nodes_of_[0]->state, v1::READY);
}

TEST_F(RecoveryTest, ColocatedServerIsNotLostByReport) {
  Begin();
  ReportLost(*nodes_of_[1], *ServerOf(*nodes_of_[0]));
  EXPECT_EQ(nodes_of_[0]->state, v1::READY);
  EXPECT_GT(PartitionsOf(plan(), ServerOf(*nodes_of_[0])->id), 0);
}

TEST_F(RecoveryTest, LostServerWithoutASubstituteFailsTheJobAndNamesIt) {
  FakeServer& lost = AddCpuServer();
  FakeServer& small = AddCpuServer(/*memory_limit=*/8192);
  nodes_of_ = AddJob("a", 2, /*colocated=*/false);
  DeclareAll(nodes_of_, {Tensor("w", {20000})});
  ASSERT_TRUE(nodes_of_[0]->plans.contains("w"));
  Kill(&lost);
  Pass(absl::Seconds(6));
  EXPECT_EQ(nodes_of_[0]->state, v1::FAILED);
  EXPECT_EQ(nodes_of_[0]->failed_kind, TraitsOf(FailureKind::kResources).name);
  EXPECT_THAT(nodes_of_[0]->reason, HasSubstr("server 1 (on cpu0) was lost"));
  EXPECT_GT(small.id, 0u);
}

TEST_F(RecoveryTest, LoadsFollowThePartitions) {
  FakeServer& lost = AddCpuServer();
  Begin();
  Kill(&lost);
  Pass(absl::Seconds(6));
  double assigned = 0;
  const v1::GetStatusResponse status = Status();
  for (const auto& share : status.jobs(0).shares()) {
    EXPECT_NE(share.server_id(), lost.id);
    EXPECT_NEAR(share.assigned(), share.share(), 0.03) << "one partition is 1 %";
    assigned += share.assigned();
  }
  EXPECT_NEAR(assigned, 1, 1e-9);
  // The books are right to the end: nothing is left when the tensor goes.
  for (const FakeNode* node : nodes_of_) Undeclare(*node, "w");
  for (const auto& server : servers_) {
    if (server->watch != 0) {
      EXPECT_EQ(server->held_bytes(), 0u);
    }
  }
}

// The watch breaks, but the server lives.
void BreakWatch(Membership* membership, absl::Time now, FakeServer* server) {
  membership->WatchBroke(now, server->watch);
  server->watch = 0;
}

TEST_F(RecoveryTest, ServerAccusedBeforeItsWatchBreaksIsLostAtOnce) {
  FakeServer& server = AddCpuServer();
  Begin();
  const int servers = Status().servers_size();
  ReportLost(*nodes_of_[1], server);
  now_ += absl::Milliseconds(300);
  BreakWatch(membership_.get(), now_, &server);
  Pass(absl::Milliseconds(500));
  EXPECT_EQ(Status().servers_size(), servers - 1);
}

TEST_F(RecoveryTest, ServerAccusedAfterItsWatchBrokeIsLostAtOnce) {
  FakeServer& server = AddCpuServer();
  Begin();
  const int servers = Status().servers_size();
  BreakWatch(membership_.get(), now_, &server);
  Pass(absl::Seconds(3));
  EXPECT_EQ(Status().servers_size(), servers);
  ReportLost(*nodes_of_[1], server);
  EXPECT_EQ(Status().servers_size(), servers - 1);
}

TEST_F(RecoveryTest, OldAccusationDoesNotShortenALease) {
  FakeServer& server = AddCpuServer();
  Begin();
  const int servers = Status().servers_size();
  ReportLost(*nodes_of_[1], server);
  Pass(absl::Seconds(2));
  BreakWatch(membership_.get(), now_, &server);
  Pass(absl::Seconds(3));
  EXPECT_EQ(Status().servers_size(), servers);
  Watch(&server);
  Pass(absl::Seconds(6));
  EXPECT_EQ(Status().servers_size(), servers);
}

TEST_F(RecoveryTest, AccusedServerIsAvoidedInTheNextGenerationToo) {
  FakeServer& server = AddCpuServer();
  Begin();
  ReportLost(*nodes_of_[1], server);
  for (const FakeNode* node : nodes_of_) Idle(*node);
  ASSERT_EQ(nodes_of_[0]->generation, 2u);
  DeclareAll(nodes_of_, {Tensor("w", {100000})});
  EXPECT_EQ(PartitionsOf(plan(), server.id), 0);
  Pass(absl::Minutes(10));
  EXPECT_GT(PartitionsOf(plan(), server.id), 0);
}

}  // namespace
}  // namespace addend
