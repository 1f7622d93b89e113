// A scheduler that is killed and started anew without the records of its jobs: the members tell.
#include <gmock/gmock.h>

#include <algorithm>
#include <limits>

#include "tests/unit/scheduler/cluster_fixture.h"

namespace addend {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class ReunionTest : public ClusterTest {
 protected:
  // The plan of the tensor, which all nodes know alike and all servers hold; under a version above
  // `above`.
  void ExpectRecovered(const std::string& name, uint64_t above) {
    std::string plan;
    for (const auto& node : nodes_) {
      if (node->silent) continue;
      ASSERT_TRUE(node->plans.contains(name)) << Reasons();
      const v1::TensorPlan& own = node->plans.at(name);
      if (plan.empty()) plan = own.SerializeAsString();
      EXPECT_EQ(own.SerializeAsString(), plan);
      ExpectHeld(own, node->job_id);
      ASSERT_EQ(own.versions_size(), own.servers_size());
      for (const uint64_t version : own.versions()) EXPECT_GT(version, above);
    }
  }
};

TEST_F(ReunionTest, AJobGoesOnWithItsNumbersAndPlansUnderALaterVersion) {
  AddCpuServer();
  const auto nodes = AddJob("a", 2);
  DeclareAll(nodes, {Tensor("w", {100000})});
  const uint64_t job = nodes[0]->job_id;
  const uint64_t version = nodes[0]->plan_version;
  const uint32_t tensor = nodes[0]->plans.at("w").tensor_id();
  RestartWithoutStore();
  AllComeBack();
  for (const FakeNode* node : nodes) {
    EXPECT_EQ(node->job_id, job);
    EXPECT_EQ(node->state, v1::READY);
    EXPECT_EQ(node->generation, 1u);
    EXPECT_EQ(node->plans.at("w").tensor_id(), tensor);
  }
  ExpectRecovered("w", version);
  DeclareAll(nodes, {Tensor("u", {100000})});
  EXPECT_GT(nodes[0]->plans.at("u").tensor_id(), tensor);
}

TEST_F(ReunionTest, ItCanHappenAgainAndAgain) {
  AddCpuServer();
  const auto nodes = AddJob("a", 3);
  for (int i = 0; i < 5; ++i) {
    DeclareAll(nodes, {Tensor("w" + std::to_string(i), {50000})});
    const uint64_t version = nodes[0]->plan_version;
    RestartWithoutStore();
    AllComeBack();
    for (int j = 0; j <= i; ++j) ExpectRecovered("w" + std::to_string(j), version);
  }
}

TEST_F(ReunionTest, NothingIsSentBeforeAllHaveCome) {
  FakeServer& server = AddCpuServer();
  const auto nodes = AddJob("a", 2);
  DeclareAll(nodes, {Tensor("w", {100000})});
  RestartWithoutStore();
  const size_t updates = server.updates.size();
  EXPECT_THAT(ComeBack(nodes[0]).message(), HasSubstr("node 1 of job 'a'"));
  EXPECT_TRUE(absl::IsUnavailable(ComeBack(&server)));
  EXPECT_TRUE(absl::IsUnavailable(ComeBack(ServerOf(*nodes[0]))));
  EXPECT_TRUE(absl::IsUnavailable(ComeBack(ServerOf(*nodes[1]))));
  EXPECT_EQ(server.updates.size(), updates);
  EXPECT_TRUE(ComeBack(nodes[1]).ok());  // the last
  EXPECT_TRUE(ComeBack(nodes[0]).ok());
}

TEST_F(ReunionTest, ANodeThatDoesNotComeBackIsLost) {
  const auto nodes = AddJob("a", 2);
  DeclareAll(nodes, {Tensor("w", {100000})});
  Kill(nodes[1]);
  RestartWithoutStore();
  AllComeBack(absl::Seconds(11));
  EXPECT_EQ(nodes[0]->state, v1::FAILED);
  EXPECT_THAT(nodes[0]->reason, HasSubstr("node 1 of job 'a' was lost"));
}

// The simulator has found it: the scheduler went on without members that could not reach it.
TEST_F(ReunionTest, ASchedulerThatDidNotRunGoesOnWaiting) {
  const auto nodes = AddJob("a", 2);
  DeclareAll(nodes, {Tensor("w", {100000})});
  RestartWithoutStore();
  EXPECT_TRUE(absl::IsUnavailable(ComeBack(nodes[0])));
  now_ += absl::Seconds(60);
  Apply(membership_->Tick(now_).decision);
  AllComeBack();
  EXPECT_EQ(nodes[0]->state, v1::READY) << Reasons();
  ExpectRecovered("w", 0);
}

TEST_F(ReunionTest, AServerThatDoesNotComeBackIsReplaced) {
  FakeServer& server = AddCpuServer();
  const auto nodes = AddJob("a", 2);
  DeclareAll(nodes, {Tensor("w", {100000})});
  const auto& servers = nodes[0]->plans.at("w").servers();
  ASSERT_NE(std::find(servers.begin(), servers.end(), server.id), servers.end());
  const uint64_t version = nodes[0]->plan_version;
  Kill(&server);
  RestartWithoutStore();
  AllComeBack(absl::Seconds(11));
  ExpectRecovered("w", version);
}

// No node tells the scheduler of a server that owned nothing.
TEST_F(ReunionTest, ATensorWaitsForTheFirstServerThatComesBack) {
  AddCpuServer();
  FakeNode* const node = AddJob("a", 1)[0];
  RestartWithoutStore();
  ASSERT_TRUE(ComeBack(node).ok());
  Declare(*node, {Tensor("w", {1000})});
  EXPECT_THAT(node->errors, IsEmpty());
  EXPECT_THAT(Reasons(), HasSubstr("tensor 'w' waits for a summation server to come back"));
  AllComeBack();
  EXPECT_TRUE(node->plans.contains("w"));
}

// The simulator has found it: the first server that came was drained before the others were back.
TEST_F(ReunionTest, ATensorWaitsForAnotherServerWhenTheFirstHasLeft) {
  FakeServer& former = AddCpuServer();
  FakeNode* const node = AddJob("a", 1, /*colocated=*/false)[0];
  RestartWithoutStore();
  FakeServer& first = AddCpuServer();
  ASSERT_TRUE(ComeBack(node).ok());
  ASSERT_TRUE(Drain(first).ok());
  Declare(*node, {Tensor("w", {1000})});
  EXPECT_THAT(node->errors, IsEmpty());
  Pass(absl::Seconds(2));
  EXPECT_THAT(node->errors, IsEmpty());
  ASSERT_TRUE(ComeBack(&former).ok());
  EXPECT_THAT(node->errors, IsEmpty());
  EXPECT_TRUE(node->plans.contains("w"));
}

TEST_F(ReunionTest, ATensorIsRefusedWhenNoServerHasComeBackInTime) {
  FakeNode* const node = AddJob("a", 1, /*colocated=*/false)[0];
  RestartWithoutStore();
  ASSERT_TRUE(ComeBack(node).ok());
  Declare(*node, {Tensor("w", {1000})});
  EXPECT_THAT(node->errors, IsEmpty());
  Pass(absl::Seconds(11));
  ASSERT_TRUE(node->errors.contains("w"));
  EXPECT_THAT(node->errors.at("w").message(), HasSubstr("there is no summation server"));
}

TEST_F(ReunionTest, ALostNodeStaysLost) {
  on_node_loss_ = "shrink";
  const auto nodes = AddJob("a", 3);
  DeclareAll(nodes, {Tensor("w", {100000})});
  Kill(nodes[2]);
  Pass(absl::Seconds(6));
  ASSERT_EQ(nodes[0]->state, v1::READY);
  RestartWithoutStore();
  AllComeBack();
  EXPECT_EQ(nodes[0]->state, v1::READY);
  EXPECT_THAT(nodes[0]->updates.back().lost_nodes(), ElementsAre(2));
}

// The simulator has found it: the node had been told, for its trainers, that the generation has
// failed.
TEST_F(ReunionTest, AJobGoesOnWithoutALostNodeThatComesBack) {
  on_node_loss_ = "shrink";
  const auto nodes = AddJob("a", 3);
  DeclareAll(nodes, {Tensor("w", {100000})});
  Fail(*nodes[2], "a rank ended", FailureKind::kPeerLost);
  ASSERT_EQ(nodes[0]->state, v1::READY);
  ASSERT_EQ(nodes[2]->state, v1::FAILED);
  RestartWithoutStore();
  AllComeBack();
  EXPECT_EQ(nodes[0]->state, v1::READY) << Reasons();
  EXPECT_EQ(nodes[2]->state, v1::FAILED);
  EXPECT_THAT(nodes[0]->updates.back().lost_nodes(), ElementsAre(2));
}

TEST_F(ReunionTest, ATensorIsRemovedWhenTheLastNodeUndeclaresIt) {
  const auto nodes = AddJob("a", 2);
  DeclareAll(nodes, {Tensor("w", {1000}), Tensor("x", {1000})});
  Undeclare(*nodes[0], "w");
  RestartWithoutStore();
  AllComeBack();
  EXPECT_TRUE(nodes[0]->plans.contains("w"));
  Undeclare(*nodes[1], "w");
  EXPECT_FALSE(nodes[0]->plans.contains("w"));
  EXPECT_TRUE(nodes[0]->plans.contains("x"));
}

// It was the last that was planned, and the nodes say when they open a watch that they know of it.
TEST_F(ReunionTest, ATensorThatWasRemovedKeepsItsNumber) {
  const auto nodes = AddJob("a", 2);
  DeclareAll(nodes, {Tensor("w", {1000}), Tensor("x", {1000})});
  const uint32_t last = nodes[0]->plans.at("x").tensor_id();
  Undeclare(*nodes[0], "x");
  Undeclare(*nodes[1], "x");
  ASSERT_FALSE(nodes[0]->plans.contains("x"));
  RestartWithoutStore();
  AllComeBack();
  EXPECT_EQ(nodes[0]->state, v1::READY) << nodes[0]->reason;
  DeclareAll(nodes, {Tensor("x", {1000})});
  EXPECT_GT(nodes[0]->plans.at("x").tensor_id(), last);
}

// The scheduler was killed when it had told some nodes only.
TEST_F(ReunionTest, ARemovalThatSomeNodesHaveHeardOfIsOne) {
  const auto nodes = AddJob("a", 2);
  DeclareAll(nodes, {Tensor("w", {1000})});
  nodes[1]->watch = 0;  // hears nothing of it
  Undeclare(*nodes[0], "w");
  Undeclare(*nodes[1], "w");
  ASSERT_TRUE(nodes[1]->plans.contains("w") && !nodes[0]->plans.contains("w"));
  RestartWithoutStore();
  AllComeBack();
  EXPECT_FALSE(nodes[1]->plans.contains("w"));
  DeclareAll(nodes, {Tensor("w", {2000})});
  EXPECT_EQ(nodes[0]->plans.at("w").tensor().shape(0), 2000);
}

TEST_F(ReunionTest, APlanThatSomeNodesHaveHeardOfIsOne) {
  const auto nodes = AddJob("a", 2);
  nodes[1]->watch = 0;
  DeclareAll(nodes, {Tensor("w", {1000})});
  ASSERT_TRUE(nodes[0]->plans.contains("w") && !nodes[1]->plans.contains("w"));
  RestartWithoutStore();
  AllComeBack();
  ExpectRecovered("w", 0);
}

TEST_F(ReunionTest, AReservationThatNobodyWasToldOfIsPlannedAnew) {
  FakeServer& server = AddCpuServer();
  const auto nodes = AddJob("a", 2);
  server.answers = false;
  DeclareAll(nodes, {Tensor("w", {100000})});
  ASSERT_TRUE(nodes[0]->plans.empty());
  server.answers = true;
  RestartWithoutStore();
  AllComeBack();
  DeclareAll(nodes, {Tensor("w", {100000})});  // as agents do with their first full update
  ASSERT_TRUE(nodes[0]->plans.contains("w"));
  ExpectHeld(nodes[0]->plans.at("w"), nodes[0]->job_id);
}

TEST_F(ReunionTest, TheNextGenerationBeginsWhenAllAreIdle) {
  const auto nodes = AddJob("a", 2);
  Idle(*nodes[0]);
  RestartWithoutStore();
  AllComeBack();
  EXPECT_EQ(nodes[1]->generation, 1u);
  Idle(*nodes[1]);
  EXPECT_EQ(nodes[0]->generation, 2u);
  EXPECT_EQ(nodes[1]->state, v1::READY);
}

// Nodes that were taken in with their jobs need not register again.
TEST_F(ReunionTest, ItBeginsAtOnceIfAllWereIdle) {
  AddCpuServer();
  const auto nodes = AddJob("a", 2);
  DeclareAll(nodes, {Tensor("w", {100000})});
  for (FakeNode* node : nodes) {  // their last words, which the scheduler did not hear
    v1::ReportIdleRequest idle;
    idle.set_generation(node->generation);
    node->memory.Note(Report(idle));
  }
  RestartWithoutStore();
  for (FakeNode* node : nodes) EXPECT_TRUE(absl::IsUnavailable(ComeBack(node)));
  for (auto& server : servers_) ComeBack(server.get()).IgnoreError();
  for (FakeNode* node : nodes) Watch(node);
  EXPECT_EQ(nodes[0]->generation, 2u);
}

// An idle node was told FORMING, and those that were told FAILED do not come back.
TEST_F(ReunionTest, AGenerationThatOnlyIdleNodesRememberIsOver) {
  const auto nodes = AddJob("a", 2);
  DeclareAll(nodes, {Tensor("w", {100000})});
  Fail(*nodes[0], "rank 0 died");
  Idle(*nodes[0]);
  ASSERT_EQ(nodes[0]->state, v1::FORMING);
  Kill(nodes[1]);
  RestartWithoutStore();
  AllComeBack(absl::Seconds(11));
  EXPECT_EQ(nodes[0]->generation, 2u);
  EXPECT_TRUE(nodes[0]->plans.empty());
}

// So was a node that was started anew, which has not reported that it is idle.
TEST_F(ReunionTest, AGenerationThatOnlyANodeStartedAnewRemembersIsOver) {
  AddCpuServer();
  const auto nodes = AddJob("a", 2, /*colocated=*/false);
  DeclareAll(nodes, {Tensor("w", {100000})});
  Idle(*nodes[0]);
  Leave(nodes[0]);
  FakeNode& anew = AddNode("a", 0, 2, /*colocated=*/false);
  ASSERT_EQ(anew.state, v1::FORMING);
  ASSERT_TRUE(anew.plans.contains("w"));
  Kill(nodes[1]);
  RestartWithoutStore();
  AllComeBack(absl::Seconds(11));
  EXPECT_EQ(anew.generation, 2u);
  EXPECT_TRUE(anew.plans.empty());
}

// The node that waits does not know that the generation has begun, and no other node is left.
TEST_F(ReunionTest, TheGenerationThatANodeWaitsForTheEndOfIsNotBegunAgain) {
  const auto nodes = AddJob("a", 2);
  Kill(nodes[0]);
  Pass(absl::Seconds(6));
  ASSERT_EQ(nodes[1]->state, v1::FAILED);
  FakeNode& waits = AddNode("a", 0, 2);
  ASSERT_EQ(waits.generation, 1u);
  ASSERT_EQ(waits.state, v1::FORMING);
  Kill(nodes[1]);
  RestartWithoutStore();
  AllComeBack(absl::Seconds(11));
  AddNode("a", 1, 2);
  EXPECT_EQ(waits.state, v1::READY);
  EXPECT_EQ(waits.generation, 2u);
}

TEST_F(ReunionTest, AFailureThatAnyNodeHasHeardOfIsOne) {
  const auto nodes = AddJob("a", 2);
  nodes[0]->watch = 0;
  Fail(*nodes[1], "rank 1 died");
  ASSERT_EQ(nodes[0]->state, v1::READY);
  RestartWithoutStore();
  AllComeBack();
  EXPECT_EQ(nodes[0]->state, v1::FAILED);
  EXPECT_EQ(nodes[0]->reason, "rank 1 died");
}

// It was FORMING when they heard of it last, and may have begun since.
TEST_F(ReunionTest, AGenerationThatSomeNodesHaveHeardOfIsFollowedByTheNext) {
  const auto nodes = AddJob("a", 2);
  DeclareAll(nodes, {Tensor("w", {1000})});
  Idle(*nodes[0]);
  nodes[1]->watch = 0;
  Idle(*nodes[1]);
  ASSERT_EQ(nodes[0]->generation, 2u);
  RestartWithoutStore();
  AllComeBack();
  for (const FakeNode* node : nodes) EXPECT_EQ(node->generation, 3u);
  EXPECT_EQ(nodes[1]->state, v1::READY);
  EXPECT_TRUE(nodes[1]->plans.empty());
}

TEST_F(ReunionTest, TwoJobsThatShareAServerGoOn) {
  FakeServer& server = AddCpuServer();
  const auto a = AddJob("a", 2);
  const auto b = AddJob("b", 2);
  DeclareAll(a, {Tensor("w", {100000})});
  DeclareAll(b, {Tensor("w", {100000})});
  RestartWithoutStore();
  AllComeBack();
  EXPECT_EQ(server.jobs.size(), 2u);
  ExpectHeld(a[0]->plans.at("w"), a[0]->job_id);
  ExpectHeld(b[0]->plans.at("w"), b[0]->job_id);
}

TEST_F(ReunionTest, AJobWhoseNodesAreGoneHoldsTheOthersUpForTwoLeasesOnly) {
  FakeServer& server = AddCpuServer();
  const auto a = AddJob("a", 2);
  const auto b = AddJob("b", 2);
  DeclareAll(a, {Tensor("w", {100000})});
  DeclareAll(b, {Tensor("w", {100000})});
  for (FakeNode* node : b) Kill(node);
  RestartWithoutStore();
  AllComeBack(absl::Seconds(11));
  EXPECT_EQ(a[0]->state, v1::READY);
  EXPECT_EQ(server.jobs.size(), 1u);
}

TEST_F(ReunionTest, AJobThatBeganMeanwhileIsNotHeldUp) {
  const auto nodes = AddJob("a", 2);
  RestartWithoutStore();
  EXPECT_TRUE(absl::IsUnavailable(ComeBack(nodes[0])));
  const auto others = AddJob("other", 2);
  EXPECT_NE(others[0]->job_id, nodes[0]->job_id);
  AllComeBack();
  EXPECT_EQ(nodes[0]->state, v1::READY);
}

TEST_F(ReunionTest, AServerWhoseNumberIsTakenGetsAnother) {
  FakeServer& server = AddCpuServer();
  const auto nodes = AddJob("a", 2);
  DeclareAll(nodes, {Tensor("w", {100000})});
  const uint32_t id = server.id;
  const uint64_t version = nodes[0]->plan_version;
  RestartWithoutStore();
  FakeServer& fresh = AddCpuServer();
  ASSERT_EQ(fresh.id, id);
  AllComeBack();
  EXPECT_EQ(fresh.id, id);
  EXPECT_NE(server.id, id);
  ExpectRecovered("w", version);
}

// A job's plan names its own server, though another job knows another server by the same number.
TEST_F(ReunionTest, ServersOfTwoFormerSchedulersMayHaveTheSameNumber) {
  const auto a = AddJob("a", 2, /*colocated=*/false);
  FakeServer& first = AddCpuServer();
  DeclareAll(a, {Tensor("w", {100000})});
  for (FakeNode* node : a) node->watch = 0;  // cut off, as its server
  RestartWithoutStore();
  first.silent = true;
  for (FakeNode* node : a) node->silent = true;
  const auto b = AddJob("b", 2, /*colocated=*/false);
  FakeServer& second = AddCpuServer();
  ASSERT_EQ(second.id, first.id);
  DeclareAll(b, {Tensor("w", {100000})});
  RestartWithoutStore();
  first.silent = false;
  for (FakeNode* node : a) node->silent = false;
  AllComeBack();
  EXPECT_NE(second.id, first.id);
  ExpectHeld(a[0]->plans.at("w"), a[0]->job_id);
  ExpectHeld(b[0]->plans.at("w"), b[0]->job_id);
  EXPECT_EQ(a[0]->plans.at("w").servers(0), first.id);
  EXPECT_EQ(b[0]->plans.at("w").servers(0), second.id);
}

TEST_F(ReunionTest, AFormerServerIsAwaitedThoughAnotherHasItsNumber) {
  const auto nodes = AddJob("a", 2);
  DeclareAll(nodes, {Tensor("w", {100000})});
  FakeServer& own = *ServerOf(*nodes[0]);
  RestartWithoutStore();
  ASSERT_EQ(AddCpuServer().id, own.id);
  for (FakeNode* node : nodes) EXPECT_TRUE(absl::IsUnavailable(ComeBack(node)));
  EXPECT_TRUE(absl::IsUnavailable(ComeBack(ServerOf(*nodes[1]))));
  EXPECT_TRUE(ComeBack(&own).ok());
  EXPECT_EQ(own.id, nodes[0]->info.colocated_server_id());
}

TEST_F(ReunionTest, AnAgentThatWasStartedAnewWaitsForItsJob) {
  const auto nodes = AddJob("a", 2);
  DeclareAll(nodes, {Tensor("w", {1000})});
  Kill(nodes[1]);
  RestartWithoutStore();
  EXPECT_TRUE(absl::IsUnavailable(ComeBack(nodes[0])));
  auto anew = std::make_unique<FakeNode>();
  anew->info = NodeRequest("a", 1, 2);
  EXPECT_TRUE(absl::IsUnavailable(Register(anew.get())));
  AllComeBack(absl::Seconds(11));
  EXPECT_TRUE(Register(anew.get()).ok());
  EXPECT_EQ(anew->job_id, nodes[0]->job_id);
}

TEST_F(ReunionTest, AnAgentThatWasStartedAnewAndCameFirstGivesWay) {
  const auto nodes = AddJob("a", 2);
  DeclareAll(nodes, {Tensor("w", {1000})});
  RestartWithoutStore();
  nodes[1]->silent = true;
  auto anew = std::make_unique<FakeNode>();
  anew->info = NodeRequest("a", 1, 2);
  ASSERT_TRUE(Register(anew.get()).ok());
  AllComeBack(absl::Seconds(11));
  EXPECT_EQ(nodes[0]->state, v1::FAILED);  // without node 1
  EXPECT_NE(anew->job_id, nodes[0]->job_id);
}

TEST_F(ReunionTest, ANodeWithAnotherSecretIsRefused) {
  const auto nodes = AddJob("a", 2);
  RestartWithoutStore();
  EXPECT_TRUE(absl::IsUnavailable(ComeBack(nodes[0])));
  nodes[1]->info.set_join_proof(std::string(32, 'x'));
  EXPECT_TRUE(absl::IsPermissionDenied(ComeBack(nodes[1])));
}

// It would stand for an owner of partitions, or give the job a key that it knows.
TEST_F(ReunionTest, AServerOfAnotherJobSpeaksForNoOwner) {
  const auto a = AddJob("a", 2);
  const auto b = AddJob("b", 2);
  DeclareAll(a, {Tensor("w", {100000})});
  FakeServer& owner = *ServerOf(*a[0]);
  FakeServer& other = *ServerOf(*b[0]);
  RestartWithoutStore();
  owner.silent = true;
  v1::RegisterServerRequest claim = other.info;
  claim.set_former_server_id(owner.id);
  owner.announced.AddTo(&claim);
  claim.mutable_announced(0)->set_key(std::string(32, 'x'));
  auto [answer, decision] = membership_->RegisterServer(now_, claim);
  Apply(std::move(decision));
  ASSERT_TRUE(absl::IsUnavailable(answer.status()));
  ASSERT_TRUE(absl::IsUnavailable(ComeBack(ServerOf(*a[1]))));
  ASSERT_TRUE(absl::IsUnavailable(ComeBack(a[0])));
  EXPECT_THAT(ComeBack(a[1]).message(), HasSubstr("server 1 of job 'a'"));
  owner.silent = false;
  EXPECT_TRUE(ComeBack(&owner).ok());
}

TEST_F(ReunionTest, AServerThatSumsGivesNoNumberAway) {
  const auto a = AddJob("a", 2);
  DeclareAll(a, {Tensor("w", {100000})});
  RestartWithoutStore();
  const auto b = AddJob("b", 2);  // its servers have the numbers of a's
  DeclareAll(b, {Tensor("w", {100000})});
  const uint32_t number = ServerOf(*b[0])->id;
  for (FakeNode* node : a) EXPECT_TRUE(absl::IsUnavailable(ComeBack(node)));
  for (auto& server : servers_) {
    if (server->watch == 0) ComeBack(server.get()).IgnoreError();
  }
  EXPECT_EQ(b[0]->state, v1::READY);
  EXPECT_EQ(ServerOf(*b[0])->id, number);
  ExpectHeld(b[0]->plans.at("w"), b[0]->job_id);
}

TEST_F(ReunionTest, ALostNodeIsANodeOfTheJob) {
  const auto nodes = AddJob("a", 2);
  RestartWithoutStore();
  v1::NodeUpdate update = nodes[0]->updates.back();
  update.add_lost_nodes(7);
  nodes[0]->memory.Note(update);
  AllComeBack();
  EXPECT_EQ(nodes[0]->state, v1::READY);
  EXPECT_EQ(nodes[0]->updates.back().lost_nodes_size(), 0);
}

TEST_F(ReunionTest, NobodyFillsTheMemoryOfTheScheduler) {
  const auto nodes = AddJob("a", 2);
  RestartWithoutStore();
  v1::NodeUpdate update = nodes[0]->updates.back();
  update.set_full(false);
  for (uint32_t i = 0; i < 3; ++i) {
    v1::TensorPlan* const plan = update.add_tensors();
    plan->set_tensor_id(i + 1);
    plan->mutable_servers()->Resize(1 << 19, 1);
  }
  nodes[0]->memory.Note(update);
  EXPECT_TRUE(absl::IsResourceExhausted(ComeBack(nodes[0])));
}

// Members are not believed when their knowledge could not be a job's records.
TEST_F(ReunionTest, NonsenseIsRefusedAndOtherJobsGoOn) {
  const auto a = AddJob("a", 2);
  const auto b = AddJob("b", 2);
  DeclareAll(a, {Tensor("w", {1000})});
  DeclareAll(b, {Tensor("w", {1000})});
  RestartWithoutStore();
  for (FakeNode* node : b) {
    v1::NodeUpdate nonsense = node->updates.back();
    nonsense.clear_tensors();
    v1::TensorPlan* const plan = nonsense.add_tensors();
    *plan = node->plans.at("w");
    plan->set_tensor_id(std::numeric_limits<uint32_t>::max());
    nonsense.set_full(false);
    node->memory.Note(nonsense);
  }
  const uint64_t b_before = b[0]->job_id;
  for (int i = 0; i < 3; ++i) {
    for (auto& node : nodes_) {
      if (node->watch == 0) ComeBack(node.get()).IgnoreError();
    }
    for (auto& server : servers_) {
      if (server->watch == 0) ComeBack(server.get()).IgnoreError();
    }
  }
  EXPECT_EQ(a[0]->state, v1::READY);
  EXPECT_NE(a[0]->watch, 0u);
  EXPECT_NE(b[0]->job_id, b_before);  // lib/member refuses that
  EXPECT_THAT(Reasons(), HasSubstr("job 'b' cannot go on from what its members know"));
}

}  // namespace
}  // namespace addend
