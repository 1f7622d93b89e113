// A scheduler that is killed and started anew on its store.
#include <gmock/gmock.h>

#include "lib/summation/table_bytes.h"
#include "services/scheduler/records.h"
#include "tests/unit/scheduler/cluster_fixture.h"

namespace addend {
namespace {

using testing::HasSubstr;

class RestoreTest : public ClusterTest {
 protected:
  void DeclareAll(const std::vector<FakeNode*>& nodes,
                  const std::vector<v1::TensorDescriptor>& tensors) {
    for (const FakeNode* node : nodes) Declare(*node, tensors);
  }
};

TEST_F(RestoreTest, RestartKeepsPlanVersionPlansAndIds) {
  AddCpuServer();
  const auto nodes = AddJob("a", 2);
  DeclareAll(nodes, {Tensor("w", {100000})});
  const uint64_t version = nodes[0]->plan_version;
  const std::string plan = nodes[0]->plans.at("w").SerializeAsString();
  Restart();
  EXPECT_EQ(nodes[0]->state, v1::READY);
  EXPECT_EQ(nodes[0]->generation, 1u);
  EXPECT_EQ(nodes[0]->plan_version, version);
  EXPECT_EQ(nodes[0]->plans.at("w").SerializeAsString(), plan);
  DeclareAll(nodes, {Tensor("u", {100000})});
  EXPECT_GT(nodes[0]->plan_version, version);
  EXPECT_NE(nodes[0]->plans.at("u").tensor_id(), nodes[0]->plans.at("w").tensor_id());
  EXPECT_EQ(AddCpuServer().id, 4u);
}

TEST_F(RestoreTest, ServersKeepTheirReservations) {
  FakeServer& server = AddCpuServer();
  const auto nodes = AddJob("a", 2);
  DeclareAll(nodes, {Tensor("w", {100000})});
  const uint64_t held = server.held_bytes();
  ASSERT_GT(held, 0u);
  Restart();
  EXPECT_EQ(server.held_bytes(), held);
}

TEST_F(RestoreTest, MembersGetTwoFullLeases) {
  const auto nodes = AddJob("a", 2);
  nodes[1]->silent = true;
  Restart();
  Pass(absl::Seconds(9));
  EXPECT_EQ(nodes[0]->state, v1::READY);
  Pass(absl::Seconds(2));
  EXPECT_EQ(nodes[0]->state, v1::FAILED);
}

TEST_F(RestoreTest, HalfAgreedTensorIsAgreedAfterwards) {
  const auto nodes = AddJob("a", 2);
  Declare(*nodes[0], {Tensor("w", {1000})});
  Restart();
  Declare(*nodes[1], {Tensor("w", {1000})});
  EXPECT_TRUE(nodes[0]->plans.contains("w"));
}

TEST_F(RestoreTest, ReservationInFlightIsFinishedAfterwards) {
  FakeServer& server = AddCpuServer();
  const auto nodes = AddJob("a", 2);
  server.answers = false;
  DeclareAll(nodes, {Tensor("w", {100000})});
  EXPECT_TRUE(nodes[0]->plans.empty());
  server.answers = true;
  Restart();
  EXPECT_TRUE(nodes[0]->plans.contains("w"));
}

TEST_F(RestoreTest, QueuedRedeclarationSurvives) {
  const auto nodes = AddJob("a", 2);
  DeclareAll(nodes, {Tensor("w", {1})});
  Undeclare(*nodes[0], "w");
  Declare(*nodes[0], {Tensor("w", {2})});
  Restart();
  Undeclare(*nodes[1], "w");
  Declare(*nodes[1], {Tensor("w", {2})});
  EXPECT_EQ(nodes[0]->plans.at("w").tensor().shape(0), 2);
}

TEST_F(RestoreTest, ErrorsAndFailuresSurvive) {
  const auto a = AddJob("a", 2);
  Declare(*a[0], {Tensor("w", {1})});
  Declare(*a[1], {Tensor("w", {2})});
  const auto b = AddJob("b", 2);
  Fail(*b[0], "rank 0 died");
  Restart();
  EXPECT_TRUE(a[0]->errors.contains("w"));
  EXPECT_EQ(b[1]->state, v1::FAILED);
  EXPECT_EQ(b[1]->reason, "rank 0 died");
  Idle(*b[0]);
  Restart();
  Idle(*b[1]);
  EXPECT_EQ(b[0]->generation, 2u);
  EXPECT_EQ(b[0]->state, v1::READY);
}

TEST_F(RestoreTest, FormingJobContinuesForming) {
  AddNode("a", 0, 2);
  Restart();
  EXPECT_EQ(nodes_[0]->state, v1::FORMING);
  AddNode("a", 1, 2);
  EXPECT_EQ(nodes_[0]->state, v1::READY);
}

TEST_F(RestoreTest, MemoryIsCountedAgain) {
  AddCpuServer(16384 + 2 * PartitionTableBytes(1));
  const auto nodes = AddJob("a", 1, /*colocated=*/false);
  Declare(*nodes[0], {Tensor("u", {2048})});
  ASSERT_TRUE(nodes[0]->plans.contains("u"));
  Restart();
  Declare(*nodes[0], {Tensor("w", {2048})});
  EXPECT_TRUE(nodes[0]->errors.contains("w"));
  Undeclare(*nodes[0], "u");
  Undeclare(*nodes[0], "w");
  Declare(*nodes[0], {Tensor("w", {2048})});
  EXPECT_TRUE(nodes[0]->plans.contains("w"));
}

// Anybody may say that a former scheduler has taken it in: the status shows the job's number.
TEST_F(RestoreTest, RestoredMemberKeepsItsRankUntilItsLeaseEnds) {
  const auto nodes = AddJob("a", 2);
  FakeServer& server = *ServerOf(*nodes[1]);
  nodes[1]->silent = server.silent = true;
  Restart();
  v1::RegisterNodeRequest node = nodes[1]->info;
  node.set_incarnation(991);
  node.set_former_job_id(nodes[1]->job_id);
  v1::RegisterServerRequest beside = server.info;
  beside.set_incarnation(991);
  beside.set_former_server_id(server.id);
  EXPECT_TRUE(absl::IsUnavailable(membership_->RegisterNode(now_, node).answer.status()));
  EXPECT_TRUE(absl::IsUnavailable(membership_->RegisterServer(now_, beside).answer.status()));
  Watch(&server);
  Watch(nodes[1]);
  EXPECT_EQ(nodes[1]->state, v1::READY);
  EXPECT_TRUE(absl::IsAlreadyExists(membership_->RegisterNode(now_, node).answer.status()));
  EXPECT_TRUE(absl::IsAlreadyExists(membership_->RegisterServer(now_, beside).answer.status()));
}

TEST_F(RestoreTest, ForgottenMemberGetsItsRankBackWhenTheHoldersLeaseEnds) {
  const auto nodes = AddJob("a", 2);
  nodes[1]->silent = ServerOf(*nodes[1])->silent = true;
  Restart();
  v1::RegisterNodeRequest node = nodes[1]->info;
  node.set_incarnation(991);
  node.set_former_job_id(nodes[1]->job_id);
  Pass(absl::Seconds(10));
  EXPECT_TRUE(membership_->RegisterNode(now_, node).answer.ok());
}

// A scheduler that begins with a copy of the store that lacks the last writes.
class OldStoreTest : public RestoreTest {
 protected:
  void Copy() { copy_ = *store_.Load(); }
  void RestartOnCopy() {
    const auto lost = store_.Load();
    for (const auto& [key, value] : *lost) {
      const StoreWrite gone{key, std::nullopt};
      ASSERT_TRUE(store_.Apply({&gone, 1}).ok());
    }
    for (const auto& [key, value] : copy_) {
      const StoreWrite back{key, value};
      ASSERT_TRUE(store_.Apply({&back, 1}).ok());
    }
    Restart();
  }
  // The member's next watch tells of the job.
  static v1::Announced* Announce(const v1::MemberId& member, uint64_t job,
                                 v1::WatchRequest* watch) {
    *watch->mutable_member() = member;
    v1::Announced* const told = watch->add_announced();
    told->set_job_id(job);
    return told;
  }
  std::vector<StoreEntry> copy_;
};

TEST_F(OldStoreTest, EveryPartitionIsRecoveredAboveTheVersionsThatMembersKnow) {
  FakeServer& server = AddCpuServer();
  const auto nodes = AddJob("a", 2);
  DeclareAll(nodes, {Tensor("w", {100000})});
  Copy();
  ASSERT_TRUE(Drain(server).ok());
  Pass(absl::Seconds(1));
  const uint64_t known = nodes[0]->plan_version;
  RestartOnCopy();
  const v1::TensorPlan& plan = nodes[0]->plans.at("w");
  EXPECT_EQ(nodes[0]->state, v1::READY);
  ASSERT_EQ(plan.versions_size(), plan.servers_size());
  for (const uint64_t version : plan.versions()) EXPECT_GT(version, known);
  EXPECT_EQ(plan.SerializeAsString(), nodes[1]->plans.at("w").SerializeAsString());
  ExpectHeld(plan, nodes[0]->job_id);
  EXPECT_THAT(Reasons(), HasSubstr("it is an old copy or has lost its last writes"));
}

TEST_F(OldStoreTest, NodesWaitUntilColocatedServersHaveDroppedForeignPartitions) {
  AddCpuServer();
  const auto nodes = AddJob("a", 2);
  DeclareAll(nodes, {Tensor("w", {100000})});
  Copy();
  ASSERT_TRUE(Drain(*servers_[0]).ok());
  FakeServer& slow = *ServerOf(*nodes[1]);
  slow.answers = false;
  RestartOnCopy();
  EXPECT_FALSE(nodes[0]->plans.contains("w"));
  slow.answers = true;
  Answer(&slow);
  EXPECT_TRUE(nodes[0]->plans.contains("w"));
}

TEST_F(RestoreTest, RestoredReservationIsPublishedWhenItsServerIsLost) {
  FakeServer& server = AddCpuServer();
  const auto nodes = AddJob("a", 2);
  server.answers = false;
  DeclareAll(nodes, {Tensor("w", {100000})});
  server.silent = true;
  Restart();
  EXPECT_FALSE(nodes[0]->plans.contains("w"));
  Pass(absl::Seconds(12));  // the server's lease ends
  ASSERT_TRUE(nodes[0]->plans.contains("w"));
  for (const uint32_t owner : nodes[0]->plans.at("w").servers()) EXPECT_NE(owner, server.id);
  ExpectHeld(nodes[0]->plans.at("w"), nodes[0]->job_id);
}

// The first scheduler waits for a second server when the first is lost.
TEST_F(RestoreTest, ReservationThatNamesALostServerIsPublishedAfterARestart) {
  FakeServer& first = AddCpuServer();
  FakeServer& second = AddCpuServer();
  const auto nodes = AddJob("a", 2);
  first.answers = second.answers = false;
  DeclareAll(nodes, {Tensor("w", {5000000})});
  Kill(&first);
  Pass(absl::Seconds(6));
  EXPECT_FALSE(nodes[0]->plans.contains("w"));
  second.answers = true;
  Restart();
  Pass(absl::Seconds(1));
  ASSERT_TRUE(nodes[0]->plans.contains("w"));
  for (const uint32_t owner : nodes[0]->plans.at("w").servers()) EXPECT_NE(owner, first.id);
  ExpectHeld(nodes[0]->plans.at("w"), nodes[0]->job_id);
}

// The simulator has found it: the nodes were told a plan with an owner that held nothing yet, and
// what they sent it was lost.
TEST_F(RestoreTest, NodesWaitForFirstOwnersToo) {
  FakeServer& first = AddCpuServer();
  FakeServer& second = AddCpuServer();
  const auto nodes = AddJob("a", 2);
  first.answers = second.answers = false;
  DeclareAll(nodes, {Tensor("w", {5000000})});
  first.silent = true;
  Restart();
  Pass(absl::Seconds(12));  // the first server's lease ends
  EXPECT_FALSE(nodes[0]->plans.contains("w")) << "the second has not answered";
  Restart();
  EXPECT_FALSE(nodes[0]->plans.contains("w")) << "the second has not answered";
  second.answers = true;
  Restart();
  ASSERT_TRUE(nodes[0]->plans.contains("w"));
  ExpectHeld(nodes[0]->plans.at("w"), nodes[0]->job_id);
}

// The simulator has found it: the server that had refused stayed an owner, and held nothing.
TEST_F(RestoreTest, RefusedReservationIsPlannedAnewWhenAnotherServerIsLost) {
  FakeServer& first = AddCpuServer();
  FakeServer& second = AddCpuServer();
  const auto nodes = AddJob("a", 2);
  first.answers = second.answers = false;
  DeclareAll(nodes, {Tensor("w", {5000000})});
  second.capacity = 100;
  second.answers = true;
  first.silent = true;
  Restart();
  EXPECT_FALSE(nodes[0]->plans.contains("w")) << "the first server has not answered";
  Pass(absl::Seconds(12));  // its lease ends
  ASSERT_TRUE(nodes[0]->plans.contains("w"));
  ExpectHeld(nodes[0]->plans.at("w"), nodes[0]->job_id);
}

// The nodes have the plan: a new plan would have another tensor id, which they would not take.
TEST_F(OldStoreTest, PublishedTensorThatTheStoreKnowsAsReservedIsRecoveredWhenItsServerIsLost) {
  FakeServer& server = AddCpuServer();
  const auto nodes = AddJob("a", 2);
  server.answers = false;
  DeclareAll(nodes, {Tensor("w", {100000})});
  Copy();
  server.answers = true;
  Answer(&server);
  const v1::TensorPlan known = nodes[0]->plans.at("w");
  const uint64_t told = nodes[0]->plan_version;
  server.silent = true;
  RestartOnCopy();
  Pass(absl::Seconds(12));  // the server's lease ends
  const v1::TensorPlan& plan = nodes[0]->plans.at("w");
  EXPECT_EQ(plan.tensor_id(), known.tensor_id());
  ASSERT_EQ(plan.versions_size(), known.servers_size());
  for (int i = 0; i < plan.servers_size(); ++i) {
    EXPECT_NE(plan.servers(i), server.id);
    if (known.servers(i) == server.id) {
      EXPECT_GT(plan.versions(i), told);
    }
  }
}

TEST_F(OldStoreTest, ForgottenTensorFailsTheGenerationWithTheReason) {
  const auto nodes = AddJob("a", 2);
  DeclareAll(nodes, {Tensor("w", {1000})});
  Copy();
  DeclareAll(nodes, {Tensor("u", {1000})});
  RestartOnCopy();
  for (const FakeNode* node : nodes) {
    EXPECT_EQ(node->state, v1::FAILED);
    EXPECT_THAT(node->reason, HasSubstr("the store of the scheduler is older than that"));
    EXPECT_EQ(node->exit_code, 75u);
  }
  Idle(*nodes[0]);
  Idle(*nodes[1]);
  EXPECT_EQ(nodes[0]->state, v1::READY);
  EXPECT_EQ(nodes[0]->generation, 2u);
}

TEST_F(OldStoreTest, ForgottenGenerationFailsAndItsNumberIsNotGivenAgain) {
  const auto nodes = AddJob("a", 2);
  Copy();
  for (const FakeNode* node : nodes) Idle(*node);
  ASSERT_EQ(nodes[0]->generation, 2u);
  RestartOnCopy();
  EXPECT_EQ(nodes[0]->state, v1::FAILED);
  EXPECT_EQ(nodes[0]->generation, 2u);
  for (const FakeNode* node : nodes) Idle(*node);
  EXPECT_EQ(nodes[0]->generation, 3u);
}

TEST_F(OldStoreTest, ForgottenServerGetsItsNumberBack) {
  AddCpuServer();
  Copy();
  FakeServer& late = AddCpuServer();
  const uint32_t number = late.id;
  servers_.pop_back();
  auto info = v1::RegisterServerRequest(servers_[0]->info);
  RestartOnCopy();
  info.set_incarnation(991);
  info.set_control_address("cpu1:7071");
  info.set_former_server_id(number);
  EXPECT_EQ(membership_->RegisterServer(now_, info).answer->server_id(), number);
  info.set_incarnation(992);
  info.set_control_address("cpu2:7071");
  EXPECT_GT(membership_->RegisterServer(now_, info).answer->server_id(), number);
}

TEST_F(OldStoreTest, ImplausibleNumbersAreNotTakenOver) {
  FakeServer& server = AddCpuServer();
  const auto nodes = AddJob("a", 2);
  DeclareAll(nodes, {Tensor("w", {100000})});
  const uint64_t version = nodes[0]->plan_version;
  v1::WatchRequest watch;
  v1::Announced* const told = Announce(nodes[0]->member(), nodes[0]->job_id, &watch);
  told->set_generation(1);
  told->set_plan_version(uint64_t{1} << 61);
  ASSERT_TRUE(membership_->WatchNode(now_, watch, 901).answer.ok());
  told->set_generation(uint32_t{1} << 30);
  ASSERT_TRUE(membership_->WatchNode(now_, watch, 902).answer.ok());
  EXPECT_EQ(Status().jobs(0).plan_version(), version);
  EXPECT_EQ(Status().jobs(0).generation(), 1u);
  *watch.mutable_member() = server.member();
  for (int i = 0; i < 1 << 15; ++i) watch.add_announced();
  EXPECT_TRUE(absl::IsInvalidArgument(membership_->WatchServer(now_, watch, 903).answer));
}

// A record with a number above 2^31 would be refused by the next scheduler.
TEST_F(OldStoreTest, RepeatedClaimsDoNotUseUpTheNumbers) {
  AddJob("a", 1);
  const auto record = [this] {
    v1::JobRecord found;
    const auto entries = store_.Load();
    for (const auto& [key, value] : *entries) {
      if (key == records::JobKey(nodes_[0]->job_id)) found.ParseFromString(value);
    }
    return found;
  };
  constexpr uint32_t kHighest = uint32_t{1} << 30;
  v1::JobRecord high = record();
  high.set_generation(kHighest - 9);
  high.set_next_tensor_id(kHighest - 9);
  const StoreWrite raised{records::JobKey(nodes_[0]->job_id), high.SerializeAsString()};
  ASSERT_TRUE(store_.Apply({&raised, 1}).ok());
  Restart();
  v1::WatchRequest watch;
  v1::Announced* const told = Announce(nodes_[0]->member(), nodes_[0]->job_id, &watch);
  for (const uint32_t claimed : {kHighest - 8, kHighest + 8}) {
    told->set_generation(claimed);
    told->set_tensor_id(claimed);
    Apply(membership_->WatchNode(now_, watch, 900 + claimed).decision);
    EXPECT_LT(record().generation(), kHighest);
    EXPECT_LE(record().next_tensor_id(), kHighest + (uint32_t{1} << 17)) << "a restored job's own";
  }
  Restart();
}

TEST_F(OldStoreTest, ServerIsBelievedAboutThePresentGenerationOnly) {
  FakeServer& server = AddCpuServer();
  const auto nodes = AddJob("a", 2);
  DeclareAll(nodes, {Tensor("w", {100000})});
  const uint64_t version = nodes[0]->plan_version;
  v1::WatchRequest watch;
  v1::Announced* const told = Announce(server.member(), nodes[0]->job_id, &watch);
  told->set_plan_version(version + 5);
  told->set_generation(2);
  Restart();
  ASSERT_TRUE(membership_->WatchServer(now_, watch, 901).answer.ok());
  EXPECT_EQ(Status().jobs(0).plan_version(), version);
  told->set_generation(1);
  ASSERT_TRUE(membership_->WatchServer(now_, watch, 902).answer.ok());
  EXPECT_GT(Status().jobs(0).plan_version(), version + 5);
}

TEST_F(OldStoreTest, FormingJobTakesNoPlanVersionFromItsNodes) {
  AddNode("a", 0, 2);
  const uint64_t version = Status().jobs(0).plan_version();
  v1::WatchRequest watch;
  v1::Announced* const told = Announce(nodes_[0]->member(), nodes_[0]->job_id, &watch);
  told->set_generation(1);
  for (const uint64_t claimed : {1, 2, 3}) {
    told->set_plan_version(version + claimed);
    const auto [status, decision] = membership_->WatchNode(now_, watch, 900 + claimed);
    ASSERT_TRUE(status.ok());
    EXPECT_TRUE(decision.writes.empty());
  }
  EXPECT_EQ(Status().jobs(0).plan_version(), version);
}

TEST_F(OldStoreTest, ForgottenJobGetsAnotherNumber) {
  Copy();
  AddJob("a", 1);
  v1::RegisterNodeRequest request = nodes_[0]->info;
  request.set_former_job_id(nodes_[0]->job_id);
  nodes_.clear();
  servers_.clear();
  RestartOnCopy();
  EXPECT_GT(membership_->RegisterNode(now_, request).answer->job_id(), request.former_job_id());
}

TEST_F(RestoreTest, DamagedRecordIsNamed) {
  AddJob("a", 1);
  const StoreWrite damage{records::JobKey(1), "\xff not a record"};
  ASSERT_TRUE(store_.Apply({&damage, 1}).ok());
  Membership membership(Membership::Options{}, now_);
  const auto entries = store_.Load();
  const absl::Status status = membership.Restore(now_, *entries);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("job/"));
}

}  // namespace
}  // namespace addend
