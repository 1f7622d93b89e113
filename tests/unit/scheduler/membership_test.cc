// Members, leases and the life of a job.
#include "services/scheduler/membership.h"

#include <gmock/gmock.h>

#include "lib/base/failure.h"
#include "lib/base/strings.h"
#include "tests/unit/scheduler/cluster_fixture.h"

namespace addend {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class MembershipTest : public ClusterTest {};

TEST_F(MembershipTest, ServerIdsStartAtOneAndAreNeverReused) {
  EXPECT_EQ(AddCpuServer().id, 1u);
  FakeServer& second = AddCpuServer();
  EXPECT_EQ(second.id, 2u);
  Leave(&second);
  EXPECT_EQ(AddCpuServer().id, 3u);
}

TEST_F(MembershipTest, RegisteringTwiceGivesTheSameId) {
  FakeServer& server = AddCpuServer();
  ASSERT_TRUE(Register(&server).ok());
  EXPECT_EQ(server.id, 1u);
  const auto nodes = AddJob("a", 2);
  const uint64_t job = nodes[0]->job_id;
  ASSERT_TRUE(Register(nodes[0]).ok());
  EXPECT_EQ(nodes[0]->job_id, job);
  EXPECT_EQ(Status().jobs(0).nodes_size(), 2);
}

TEST_F(MembershipTest, AnotherProtocolVersionIsRefusedWithBothVersions) {
  FakeNode node;
  node.info = NodeRequest("a", 0, 1);
  node.info.set_protocol_version(7);
  const absl::Status status = Register(&node);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(KindOf(status), FailureKind::kVersion);
  EXPECT_THAT(Message(status), AllOf(HasSubstr("version 7"), HasSubstr("version 1")));

  FakeServer server;
  server.info.set_protocol_version(7);
  EXPECT_EQ(KindOf(Register(&server)), FailureKind::kVersion);
}

TEST_F(MembershipTest, RankOutsideTheJobIsRefused) {
  FakeNode node;
  node.info = NodeRequest("a", 4, 4);
  const absl::Status status = Register(&node);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(KindOf(status), FailureKind::kInvalid);
  EXPECT_THAT(Message(status), HasSubstr("--node-rank=4"));
}

TEST_F(MembershipTest, SettingsThatDifferNameBothNodesAndValues) {
  AddNode("a", 0, 2);
  FakeNode node;
  node.info = NodeRequest("a", 1, 2);
  node.info.mutable_settings()->set_partition_bytes(8192);
  const absl::Status status = Register(&node);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(KindOf(status), FailureKind::kMismatch);
  EXPECT_THAT(Message(status), AllOf(HasSubstr("--partition-bytes"), HasSubstr("4096"),
                                     HasSubstr("8192"), HasSubstr("gpu0"), HasSubstr("gpu1")));
}

TEST_F(MembershipTest, AgentWithOtherSettingsReplacesNobody) {
  const auto nodes = AddJob("a", 2);
  Kill(nodes[1]);
  FakeNode other;
  other.info = NodeRequest("a", 1, 2);
  other.info.mutable_settings()->set_partition_bytes(8192);
  EXPECT_EQ(KindOf(Register(&other)), FailureKind::kMismatch);
  EXPECT_EQ(nodes[0]->state, v1::READY);
}

TEST_F(MembershipTest, PartitionsLargerThanAFrameAreRefused) {
  FakeNode node;
  node.info = NodeRequest("a", 0, 2);
  node.info.mutable_settings()->set_partition_bytes(uint64_t{1} << 31);
  const absl::Status status = Register(&node);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), AllOf(HasSubstr("--partition-bytes=2147483648"), HasSubstr("gpu0"),
                                     HasSubstr("at most 1073741824")));
}

TEST_F(MembershipTest, SecondAgentWithLiveRankIsRefused) {
  FakeNode& first = AddNode("a", 1, 2);
  FakeNode second;
  second.info = NodeRequest("a", 1, 2);
  const absl::Status status = Register(&second);
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(KindOf(status), FailureKind::kInvalid);
  EXPECT_THAT(Message(status),
              AllOf(HasSubstr("rank 1"), HasSubstr("'a'"), HasSubstr(first.info.hostname())));
}

TEST_F(MembershipTest, SecondAgentIsRefusedByItsColocatedServerToo) {
  FakeNode& first = AddNode("a", 1, 2);
  FakeServer second;
  second.info = ServerOf(first)->info;
  second.info.set_incarnation(999);
  EXPECT_EQ(Register(&second).code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(MembershipTest, RankOfAnAgentThatHasNotWatchedYetIsTakenUntilItsLeaseEnds) {
  FakeNode first;
  first.info = NodeRequest("a", 0, 2);
  ASSERT_TRUE(Register(&first).ok());
  FakeNode second;
  second.info = NodeRequest("a", 0, 2);
  EXPECT_EQ(Register(&second).code(), absl::StatusCode::kAlreadyExists);
  Pass(absl::Seconds(3));
  const absl::Status silent = Register(&second);
  EXPECT_EQ(silent.code(), absl::StatusCode::kUnavailable) << "the second tries again";
  EXPECT_THAT(Message(silent), HasSubstr("that agent does not answer any more"));
  Pass(absl::Seconds(2));
  EXPECT_TRUE(Register(&second).ok());
}

TEST_F(MembershipTest, FormingJobNamesTheNodesThatItWaitsFor) {
  FakeNode& node = AddNode("a", 0, 3);
  EXPECT_EQ(node.state, v1::FORMING);
  EXPECT_EQ(node.reason, "waiting for nodes 1 and 2 of 3 (node ranks 0..2): not registered");
  Pass(absl::Seconds(1));
  AddNode("a", 1, 3);
  Pass(absl::Seconds(1));
  EXPECT_EQ(node.reason, "waiting for node 2 of 3 (node ranks 0..2): not registered");
  AddNode("a", 2, 3);
  EXPECT_EQ(node.state, v1::READY);
  EXPECT_EQ(node.reason, "");
}

TEST_F(MembershipTest, JobFormsUntilAllTrainersAreInitialised) {
  AddNode("a", 0, 2);
  FakeNode& late = AddNode("a", 1, 2);
  FakeNode& node = *nodes_[0];
  ASSERT_EQ(node.state, v1::READY);
  Idle(node);
  late.trainers = 0;
  Idle(late);
  EXPECT_EQ(node.generation, 2u);
  EXPECT_EQ(node.state, v1::FORMING) << "those of the first generation do not count";
  Pass(absl::Seconds(42));
  EXPECT_EQ(node.reason,
            "waiting for node 1 of 2 (node ranks 0..1): agent connected, trainer not initialised");
  EXPECT_EQ(Status().jobs(0).reason(), node.reason + ", 42 s");
  late.trainers = 1;
  ReportTrainers(late);
  EXPECT_EQ(node.state, v1::READY);
}

TEST_F(MembershipTest, TrainersOfANodeAreCounted) {
  FakeNode node;
  node.info = NodeRequest("a", 0, 1);
  node.info.mutable_settings()->set_local_size(4);
  node.generation = 1;
  node.trainers = 3;
  ASSERT_TRUE(Register(&node).ok());
  Watch(&node);
  ReportTrainers(node);
  EXPECT_EQ(
      Status().jobs(0).reason(),
      "waiting for node 0 of 1 (node ranks 0..0): agent connected, 3 of 4 trainers initialised, "
      "0 s");
  node.trainers = 4;
  ReportTrainers(node);
  EXPECT_EQ(Status().jobs(0).state(), v1::READY);
}

TEST_F(MembershipTest, AgentThatDoesNotWatchIsWaitedFor) {
  FakeNode& node = AddNode("a", 0, 2);
  Pass(absl::Seconds(1));
  FakeNode other;
  other.info = NodeRequest("a", 1, 2);
  ASSERT_TRUE(Register(&other).ok());
  EXPECT_THAT(node.reason,
              HasSubstr("node 1 of 2 (node ranks 0..1): registered, but not connected"));
}

TEST_F(MembershipTest, UnknownMembersAreTold) {
  v1::HeartbeatRequest beat;
  beat.mutable_member()->set_server_id(5);
  EXPECT_EQ(membership_->Heartbeat(now_, beat).answer.code(), absl::StatusCode::kNotFound);
  beat.mutable_member()->set_server_id(0);
  beat.mutable_member()->set_job_id(1);
  EXPECT_EQ(membership_->Heartbeat(now_, beat).answer.code(), absl::StatusCode::kNotFound);
  FakeServer& server = AddCpuServer();
  *beat.mutable_member() = server.member();
  EXPECT_TRUE(membership_->Heartbeat(now_, beat).answer.ok());
  beat.mutable_member()->set_incarnation(12345);
  EXPECT_EQ(membership_->Heartbeat(now_, beat).answer.code(), absl::StatusCode::kNotFound);
}

TEST_F(MembershipTest, NodesHeartbeatRenewsTheLeaseOfItsServerIfItSpeaksForTheServer) {
  FakeNode& node = AddNode("a", 0, 1);
  ASSERT_NE(ServerOf(node), nullptr);
  v1::HeartbeatRequest beat;
  *beat.mutable_member() = node.member();
  EXPECT_FALSE(membership_->TakeColocated(now_, beat)) << "it carries none";
  *beat.mutable_colocated()->mutable_member() = ServerOf(node)->member();
  beat.mutable_colocated()->set_activity("sums");
  EXPECT_TRUE(membership_->TakeColocated(now_, beat));
  EXPECT_EQ(membership_->GetStatus(now_, {}).servers(0).activity(), "sums");
  beat.mutable_colocated()->mutable_member()->set_key("guessed");
  EXPECT_FALSE(membership_->TakeColocated(now_, beat));
  *beat.mutable_colocated()->mutable_member() = AddCpuServer().member();
  EXPECT_FALSE(membership_->TakeColocated(now_, beat)) << "a CPU server is in no agent";
}

TEST_F(MembershipTest, HeartbeatsKeepTheLease) {
  const auto nodes = AddJob("a", 2);
  AddCpuServer();
  Pass(absl::Minutes(2));
  EXPECT_EQ(nodes[0]->state, v1::READY);
  EXPECT_EQ(Status().servers_size(), 3);
}

TEST_F(MembershipTest, KilledAgentFailsTheJobWithinItsLeaseAndNamesNodeAndHost) {
  const auto nodes = AddJob("a", 3);
  Kill(nodes[1]);
  Pass(absl::Seconds(4));
  EXPECT_EQ(nodes[0]->state, v1::READY);
  Pass(absl::Seconds(1));
  for (const FakeNode* node : {nodes[0], nodes[2]}) {
    EXPECT_EQ(node->state, v1::FAILED);
    EXPECT_EQ(node->failed_kind, TraitsOf(FailureKind::kPeerLost).name);
    EXPECT_EQ(node->exit_code, TellFailure(FailureKind::kPeerLost).exit_status);
    EXPECT_THAT(node->reason, HasSubstr("node 1 (on gpu1, rank 1) was lost"));
  }
}

TEST_F(MembershipTest, AgentThatHeartbeatsButHasNoStreamForALeaseIsLost) {
  const auto nodes = AddJob("a", 2);
  membership_->WatchBroke(now_, nodes[1]->watch);
  nodes[1]->watch = 0;
  Pass(absl::Seconds(6));
  EXPECT_EQ(nodes[0]->state, v1::FAILED);
}

TEST_F(MembershipTest, AgentThatWatchesAgainInTimeIsNotLost) {
  const auto nodes = AddJob("a", 2);
  membership_->WatchBroke(now_, nodes[1]->watch);
  nodes[1]->watch = 0;
  Pass(absl::Seconds(4));
  Watch(nodes[1]);
  Pass(absl::Seconds(20));
  EXPECT_EQ(nodes[0]->state, v1::READY);
  EXPECT_TRUE(nodes[1]->updates.back().full());
}

TEST_F(MembershipTest, NewerWatchReplacesTheOlderAndOutlivesItsEnd) {
  const auto nodes = AddJob("a", 1);
  const WatchId old = nodes[0]->watch;
  Watch(nodes[0]);
  EXPECT_NE(nodes[0]->watch, 0u);
  membership_->WatchBroke(now_, old);
  Pass(absl::Seconds(20));
  EXPECT_EQ(nodes[0]->state, v1::READY);
}

TEST_F(MembershipTest, NewAgentReplacesALostAgentAndFailsItsGeneration) {
  const auto nodes = AddJob("a", 2);
  Kill(nodes[1]);
  FakeNode& newcomer = AddNode("a", 1, 2);
  EXPECT_EQ(nodes[0]->state, v1::FAILED);
  EXPECT_EQ(nodes[0]->failed_kind, TraitsOf(FailureKind::kPeerLost).name);
  // It has no part in the failed generation.
  EXPECT_EQ(newcomer.state, v1::FORMING);
  EXPECT_EQ(newcomer.reason, "waiting for the trainers of generation 1 on node 0 to end");
  Idle(*nodes[0]);
  EXPECT_EQ(nodes[0]->state, v1::READY);
  EXPECT_EQ(newcomer.state, v1::READY);
  EXPECT_EQ(newcomer.generation, 2u);
}

TEST_F(MembershipTest, ReturningNodeLearnsThatItsTrainersHaveFailed) {
  const auto nodes = AddJob("a", 2);
  Kill(nodes[1]);
  Pass(absl::Seconds(6));
  ASSERT_EQ(nodes[0]->state, v1::FAILED);
  nodes[1]->silent = false;
  FakeServer* server = ServerOf(*nodes[1]);
  server->silent = false;
  ASSERT_TRUE(Register(server).ok());
  Watch(server);
  nodes[1]->info.set_colocated_server_id(server->id);
  ASSERT_TRUE(Register(nodes[1]).ok());
  Watch(nodes[1]);
  EXPECT_EQ(nodes[1]->state, v1::FAILED);
  Idle(*nodes[0]);
  EXPECT_EQ(nodes[0]->generation, 1u);
  Idle(*nodes[1]);
  EXPECT_EQ(nodes[1]->generation, 2u);
  EXPECT_EQ(nodes[1]->state, v1::READY);
}

TEST_F(MembershipTest, NewGenerationWhenAllIdle) {
  AddCpuServer();
  const auto nodes = AddJob("a", 2);
  for (const FakeNode* node : nodes) Declare(*node, {Tensor("w", {100000})});
  ASSERT_TRUE(nodes[0]->plans.contains("w"));
  Idle(*nodes[0]);
  EXPECT_EQ(nodes[1]->generation, 1u);
  EXPECT_EQ(nodes[0]->state, v1::FORMING);
  EXPECT_THAT(nodes[0]->reason, HasSubstr("on node 1 to end"));
  EXPECT_EQ(nodes[1]->state, v1::READY);
  Idle(*nodes[1]);
  for (const FakeNode* node : nodes) {
    EXPECT_EQ(node->generation, 2u);
    EXPECT_EQ(node->state, v1::READY);
    EXPECT_TRUE(node->plans.empty());
  }
  for (const auto& server : servers_) {
    EXPECT_EQ(server->jobs.at(nodes[0]->job_id).generation, 2u);
    EXPECT_EQ(server->held_bytes(), 0u);
  }
}

TEST_F(MembershipTest, PlanVersionAndTensorIdsGrowOnInANewGeneration) {
  const auto nodes = AddJob("a", 1);
  Declare(*nodes[0], {Tensor("w", {1000})});
  const uint64_t version = nodes[0]->plan_version;
  const uint32_t id = nodes[0]->plans.at("w").tensor_id();
  Idle(*nodes[0]);
  Declare(*nodes[0], {Tensor("w", {1000})});
  EXPECT_GT(nodes[0]->plan_version, version);
  EXPECT_GT(nodes[0]->plans.at("w").tensor_id(), id);
}

TEST_F(MembershipTest, IdleNodesOfAFormingJobDoNotStartAGeneration) {
  FakeNode& node = AddNode("a", 0, 2);
  Idle(node);
  EXPECT_EQ(Status().jobs(0).generation(), 1u);
}

TEST_F(MembershipTest, ReportedFailureReachesAllNodesWithReasonAndKind) {
  const auto nodes = AddJob("a", 2);
  Fail(*nodes[1], "rank 1 on node 1 (gpu1) died");
  for (const FakeNode* node : nodes) {
    EXPECT_EQ(node->state, v1::FAILED);
    EXPECT_EQ(node->reason, "rank 1 on node 1 (gpu1) died");
    EXPECT_EQ(node->failed_kind, TraitsOf(FailureKind::kPeerLost).name);
  }
  Idle(*nodes[0]);
  Idle(*nodes[1]);
  EXPECT_EQ(nodes[0]->state, v1::READY);
  EXPECT_EQ(nodes[0]->generation, 2u);
}

TEST_F(MembershipTest, ReportsOfAFormerGenerationAreIgnored) {
  const auto nodes = AddJob("a", 1);
  FakeNode old;
  old.info = nodes[0]->info;
  old.job_id = nodes[0]->job_id;
  old.generation = nodes[0]->generation;
  Idle(*nodes[0]);
  ASSERT_EQ(nodes[0]->generation, 2u);
  Fail(old, "late");
  Idle(old);
  Declare(old, {Tensor("w", {4})});
  EXPECT_EQ(nodes[0]->state, v1::READY);
  EXPECT_EQ(nodes[0]->generation, 2u);
  EXPECT_TRUE(nodes[0]->plans.empty());
}

TEST_F(MembershipTest, NodeThatLeavesWhileOthersTrainFailsThem) {
  const auto nodes = AddJob("a", 2);
  Leave(nodes[1]);
  EXPECT_EQ(nodes[0]->state, v1::FAILED);
  EXPECT_EQ(nodes[0]->reason, "node 1 (on gpu1, rank 1) has left");
}

TEST_F(MembershipTest, NodeThatHasFinishedMayLeave) {
  const auto nodes = AddJob("a", 2);
  Idle(*nodes[1]);
  Leave(nodes[1]);
  EXPECT_EQ(nodes[0]->state, v1::READY);
  Idle(*nodes[0]);
  EXPECT_EQ(nodes[0]->state, v1::FORMING);
  EXPECT_EQ(nodes[0]->generation, 2u);
}

TEST_F(MembershipTest, JobEndsWhenAllNodesHaveLeftAndServersForgetIt) {
  FakeServer& server = AddCpuServer();
  const auto nodes = AddJob("a", 2);
  for (const FakeNode* node : nodes) Declare(*node, {Tensor("w", {100000})});
  ASSERT_EQ(server.jobs.size(), 1u);
  Leave(nodes[0]);
  Leave(nodes[1]);
  EXPECT_EQ(Status().jobs_size(), 0);
  EXPECT_TRUE(server.jobs.empty());
  const auto left = store_.Load();
  ASSERT_TRUE(left.ok());
  for (const auto& [key, value] : *left) {
    EXPECT_TRUE(key == "ids" || key.starts_with("server/")) << key;
  }
}

TEST_F(MembershipTest, JobWithoutLivingNodesIsKeptForAWhileThenRemoved) {
  const auto nodes = AddJob("a", 1);
  Kill(nodes[0]);
  Pass(absl::Seconds(6));
  EXPECT_EQ(Status().jobs_size(), 1);
  EXPECT_EQ(Status().jobs(0).generation(), 2u);
  Pass(absl::Minutes(2));
  EXPECT_EQ(Status().jobs_size(), 0);
}

TEST_F(MembershipTest, AbandonedJobTakesTheSettingsOfItsNextNode) {
  const auto nodes = AddJob("a", 1);
  Kill(nodes[0]);
  partition_bytes_ = 8192;
  FakeNode& next = AddNode("a", 0, 1);
  EXPECT_EQ(next.state, v1::READY);
  EXPECT_EQ(Status().jobs(0).settings().partition_bytes(), 8192u);
}

TEST_F(MembershipTest, WithoutASettingThePartitionSizeFollowsTheSlowestNode) {
  partition_bytes_ = 0;
  const auto nodes = AddJob("a", 2);
  EXPECT_EQ(Status().jobs(0).settings().partition_bytes(), 128u << 10) << "nothing is known";
  nodes[0]->info.set_bandwidth_bps(25e9);
  ASSERT_TRUE(Register(nodes[0]).ok());
  EXPECT_EQ(Status().jobs(0).settings().partition_bytes(), 128u << 10);
  nodes[1]->info.set_bandwidth_bps(100e6);
  ASSERT_TRUE(Register(nodes[1]).ok());
  EXPECT_EQ(Status().jobs(0).settings().partition_bytes(), 32u << 10);
  Declare(*nodes[0], {Tensor("w", {1 << 20})});
  Declare(*nodes[1], {Tensor("w", {1 << 20})});
  EXPECT_EQ(nodes[0]->plans.at("w").partition_elements(), 8u << 10);
}

TEST_F(MembershipTest, LossOfTheOnlyServerFailsTheJobAndNamesIt) {
  FakeServer& server = AddCpuServer();
  const auto nodes = AddJob("a", 2, /*colocated=*/false);
  for (const FakeNode* node : nodes) Declare(*node, {Tensor("w", {1000000})});
  ASSERT_GT(server.held_bytes(), 0u);
  Kill(&server);
  Pass(absl::Seconds(6));
  EXPECT_EQ(nodes[0]->state, v1::FAILED);
  EXPECT_EQ(nodes[0]->exit_code, 75u);
  EXPECT_THAT(nodes[0]->reason, HasSubstr("server 1 (on cpu0) was lost"));
}

TEST_F(MembershipTest, LossOfAServerThatOwnsNothingIsHarmless) {
  FakeServer& server = AddCpuServer();
  const auto nodes = AddJob("a", 2);
  Leave(&server);
  EXPECT_EQ(nodes[0]->state, v1::READY);
  for (const FakeNode* node : nodes) Declare(*node, {Tensor("w", {1000000})});
  EXPECT_TRUE(nodes[0]->plans.contains("w"));
}

TEST_F(MembershipTest, RestartedServerReplacesItsFormerIncarnation) {
  FakeServer& server = AddCpuServer();
  const uint32_t old = server.id;
  membership_->WatchBroke(now_, server.watch);
  server.info.set_incarnation(777);
  ASSERT_TRUE(Register(&server).ok());
  EXPECT_NE(server.id, old);
  EXPECT_EQ(Status().servers_size(), 1);
}

TEST_F(MembershipTest, TwoServersWithOneAddressAreRefused) {
  FakeServer& server = AddCpuServer();
  FakeServer second;
  second.info = server.info;
  second.info.set_incarnation(777);
  const absl::Status status = Register(&second);
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(Message(status), HasSubstr("cpu0:7071"));
}

TEST_F(MembershipTest, SchedulerThatStoodStillForgivesItsMembers) {
  const auto nodes = AddJob("a", 2);
  Pass(absl::Seconds(2));
  now_ += absl::Seconds(60);
  Apply(membership_->Tick(now_).decision);
  EXPECT_EQ(nodes[0]->state, v1::READY);
  EXPECT_THAT(Reasons(), HasSubstr("did not run for"));
  Pass(absl::Seconds(10));
  EXPECT_EQ(nodes[0]->state, v1::READY);
}

TEST_F(MembershipTest, JobsAreSeparate) {
  const auto a = AddJob("a", 2);
  const auto b = AddJob("b", 1);
  Kill(a[1]);
  Pass(absl::Seconds(6));
  EXPECT_EQ(a[0]->state, v1::FAILED);
  EXPECT_EQ(b[0]->state, v1::READY);
  Declare(*b[0], {Tensor("w", {10})});
  EXPECT_TRUE(b[0]->plans.contains("w"));
  EXPECT_FALSE(a[0]->plans.contains("w"));
}

TEST_F(MembershipTest, StatusShowsMembersSharesAndTimes) {
  partition_bytes_ = 4096;
  AddCpuServer(0, 1e10);
  AddNode("a", 0, 2).info.set_bandwidth_bps(1e10);
  AddNode("a", 1, 2);
  for (const auto& node : nodes_) {
    node->info.set_bandwidth_bps(1e10);
    ASSERT_TRUE(Register(node.get()).ok());
  }
  for (const auto& node : nodes_) Declare(*node, {Tensor("w", {1024 * 300})});
  const v1::GetStatusResponse status = Status();
  EXPECT_EQ(status.version(), "test");
  ASSERT_EQ(status.servers_size(), 3);
  ASSERT_EQ(status.jobs_size(), 1);
  const v1::JobStatus& job = status.jobs(0);
  EXPECT_EQ(job.tensors(), 1u);
  EXPECT_EQ(job.tensor_bytes(), 4u * 1024 * 300);
  EXPECT_GT(job.t_opt_s(), 0);
  ASSERT_EQ(job.shares_size(), 3);
  double sum = 0;
  for (const v1::ServerShare& share : job.shares()) {
    sum += share.share();
    EXPECT_NEAR(share.assigned(), share.share(), 1.0 / 300 + 1e-9);
  }
  EXPECT_NEAR(sum, 1, 1e-12);
  const MembershipSummary summary = membership_->Summary();
  EXPECT_EQ(summary.cpu_servers, 1u);
  EXPECT_EQ(summary.colocated_servers, 2u);
  EXPECT_EQ(summary.nodes, 2u);
  EXPECT_LT(summary.imbalance, 1.0 / 300 + 1e-9);
}

}  // namespace
}  // namespace addend
