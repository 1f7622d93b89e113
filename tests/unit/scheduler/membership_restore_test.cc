// A scheduler that is killed and started anew on its store.
#include <gmock/gmock.h>

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

TEST_F(RestoreTest, ServersKeepWhatTheyHold) {
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
  AddCpuServer(16384);
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
