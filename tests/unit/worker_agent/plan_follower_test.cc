// The node's steps in recovery and in planned changes.
#include "services/worker_agent/plan_follower.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lib/base/failure.h"
#include "tests/unit/worker_agent/fake_generation.h"

namespace addend {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class PlanFollowerTest : public ::testing::Test {
 protected:
  PlanFollowerTest() {
    node_.AddServer(3);
    tensor_ = generation_.Declare(Floats("t", 2));
    node_.reports.said.clear();
  }
  // Server 2 owns the partition, and its link is open.
  void Plan() {
    generation_.Apply(FakeGeneration::PlanOf(6, "t", 2, {2}));
    former_ = node_.tcp.Open();
  }
  // Server 3 owns it from version 5 on.
  static v1::TensorPlan NewOwner() {
    v1::TensorPlan plan = FakeGeneration::PlanOf(6, "t", 2, {3});
    plan.add_versions(5);
    return plan;
  }
  // Server 2 is to hand it over to server 3.
  static v1::TensorPlan Move() {
    v1::TensorPlan plan = FakeGeneration::PlanOf(6, "t", 2, {2});
    plan.add_versions(0);
    v1::PartitionMove* const move = plan.add_moves();
    move->set_partition(0);
    move->set_server(3);
    move->set_version(5);
    return plan;
  }
  void PushAll() {
    ASSERT_TRUE(generation_.Push(tensor_, 0, {1, 2}).ok());
    ASSERT_TRUE(generation_.Push(tensor_, 1, {10, 20}).ok());
    node_.loop.Settle();
  }
  FrameHeader Frame(FrameType type, uint64_t version, uint64_t round) const {
    FrameHeader header = generation_.FrameOf(type, *tensor_, 0);
    header.plan_version = PlanVersion(version);
    header.round = Round(round);
    return header;
  }

  FakeNode node_;
  FakeGeneration generation_{&node_};
  std::shared_ptr<NodeTensor> tensor_;
  FakeLink* former_ = nullptr;
};

TEST_F(PlanFollowerTest, PlanGivesTheTensorItsOwners) {
  Plan();
  EXPECT_TRUE(tensor_->planned());
  EXPECT_EQ(generation_.tensors.ById(TensorId(6)), tensor_);
  EXPECT_EQ(tensor_->owners[0].link->server(), ServerId(2));
  EXPECT_THAT(former_->frames, IsEmpty());
}

TEST_F(PlanFollowerTest, PlanThatComesAfterAllHaveReleasedTheTensorIsNotThatOfTheNextInstance) {
  EXPECT_FALSE(generation_.tensors.Release(tensor_, 0));
  EXPECT_FALSE(generation_.tensors.Release(tensor_, 1));
  const auto next = generation_.Declare(Floats("t", 2));
  ASSERT_NE(next, tensor_);
  Plan();
  EXPECT_FALSE(next->planned());
  EXPECT_EQ(generation_.tensors.ById(TensorId(6)), tensor_);
  EXPECT_EQ(generation_.tensors.ByName("t"), next);
  EXPECT_THAT(node_.reports.said, ElementsAre("undeclare t", "declare t"));
}

TEST_F(PlanFollowerTest, ErrorThatComesAfterAllHaveReleasedTheTensorIsNotThatOfTheNextInstance) {
  generation_.tensors.Release(tensor_, 0);
  generation_.tensors.Release(tensor_, 1);
  const auto next = generation_.Declare(Floats("t", 2));
  v1::NodeUpdate update;
  update.add_errors()->set_name("t");
  generation_.plan.Apply(update);
  EXPECT_TRUE(next->error.ok());
  EXPECT_EQ(generation_.tensors.ByName("t"), next);
}

TEST_F(PlanFollowerTest, TensorWhoseRanksDifferAwaitsItsRefusalBehindThePlan) {
  tensor_->agreement.differing = Floats("t", 3);
  generation_.tensors.Release(tensor_, 0);
  generation_.tensors.Release(tensor_, 1);
  Plan();
  EXPECT_EQ(generation_.tensors.ByName("t"), tensor_) << "the next of the name would be refused";
  v1::NodeUpdate update;
  update.add_errors()->set_name("t");
  generation_.plan.Apply(update);
  EXPECT_EQ(generation_.tensors.ByName("t"), nullptr);
}

TEST_F(PlanFollowerTest, UnknownServerFailsTheGeneration) {
  generation_.Apply(FakeGeneration::PlanOf(6, "t", 2, {8}));
  EXPECT_THAT(node_.reports.said,
              ElementsAre(HasSubstr("failed internal: the plan names summation server 8"), "beat"));
}

TEST_F(PlanFollowerTest, TensorErrorFailsTheTensorAlone) {
  v1::NodeUpdate update;
  v1::TensorError* const error = update.add_errors();
  error->set_name("t");
  error->set_kind(TellFailure(FailureKind::kResources).name);
  error->set_message("too large");
  generation_.plan.Apply(update);
  EXPECT_TRUE(absl::IsResourceExhausted(tensor_->error));
  EXPECT_TRUE(generation_.state.running());
}

TEST_F(PlanFollowerTest, ErrorOfAnotherDeclarationOfTheNameIsNotOfThisOne) {
  v1::NodeUpdate update;
  v1::TensorError* const error = update.add_errors();
  error->set_name("t");
  error->set_kind(TellFailure(FailureKind::kMismatch).name);
  error->set_message("differs");
  error->set_number(tensor_->number + 1);
  generation_.plan.Apply(update);
  EXPECT_TRUE(tensor_->error.ok());
  error->set_tensor_id(6);
  generation_.plan.Apply(update);
  EXPECT_TRUE(tensor_->error.ok()) << "it has no plan yet";
  error->clear_tensor_id();
  error->set_number(tensor_->number);
  generation_.plan.Apply(update);
  EXPECT_TRUE(absl::IsFailedPrecondition(tensor_->error));
}

TEST_F(PlanFollowerTest, ErrorOfAPlannedTensorIsFoundByItsId) {
  Plan();
  v1::NodeUpdate update;
  v1::TensorError* const error = update.add_errors();
  error->set_name("t");
  error->set_kind(TellFailure(FailureKind::kMismatch).name);
  error->set_tensor_id(6);
  generation_.plan.Apply(update);
  EXPECT_TRUE(absl::IsFailedPrecondition(tensor_->error));
}

TEST_F(PlanFollowerTest, NewOwnerHearsOfTheNewestResultBeforeAnyContribution) {
  Plan();
  PushAll();
  generation_.Apply(NewOwner());
  FakeLink* const owner = node_.tcp.Open();
  ASSERT_THAT(owner->types(), ElementsAre(FrameType::kRecover));
  EXPECT_EQ(owner->frames[0].header.round, Round(0)) << "no result so far";
  EXPECT_EQ(owner->frames[0].header.plan_version, PlanVersion(5));
  ASSERT_TRUE(owner->Deliver(Frame(FrameType::kRecover, 5, 0)).ok());
  EXPECT_THAT(owner->types(), ElementsAre(FrameType::kRecover, FrameType::kContribution));
  ASSERT_TRUE(owner->Deliver(Frame(FrameType::kRecover, 5, 0)).ok());
  EXPECT_EQ(owner->frames.size(), 2u) << "a repetition changes nothing";
}

TEST_F(PlanFollowerTest, ContributionToARoundThatTheNewOwnerHoldsIsNotSent) {
  Plan();
  PushAll();
  generation_.Apply(NewOwner());
  FakeLink* const owner = node_.tcp.Open();
  ASSERT_TRUE(owner->Deliver(Frame(FrameType::kRecover, 5, 1)).ok());
  EXPECT_THAT(owner->types(), ElementsAre(FrameType::kRecover));
}

TEST_F(PlanFollowerTest, FormerOwnersResultIsIgnored) {
  Plan();
  PushAll();
  generation_.Apply(NewOwner());
  ASSERT_TRUE(
      former_->Deliver(generation_.FrameOf(FrameType::kResult, *tensor_, 0), FloatBytes({1, 2}))
          .ok());
  EXPECT_TRUE(tensor_->rounds.running());
}

// The simulator has found it: a server handed an asynchronous tensor over, and became its owner
// again, while its last answer was on the way.
TEST_F(PlanFollowerTest, ResultFromBeforeTheServerBecameTheOwnerAgainIsIgnored) {
  Plan();
  PushAll();
  v1::TensorPlan again = FakeGeneration::PlanOf(6, "t", 2, {2});
  again.add_versions(5);
  generation_.Apply(again);
  ASSERT_EQ(former_->types().back(), FrameType::kRecover);
  ASSERT_TRUE(former_->Deliver(Frame(FrameType::kResult, 0, 1), FloatBytes({1, 2})).ok());
  EXPECT_TRUE(tensor_->rounds.running()) << "this node has reported that it holds no result";
  ASSERT_TRUE(former_->Deliver(Frame(FrameType::kResult, 5, 1), FloatBytes({1, 2})).ok());
  EXPECT_FALSE(tensor_->rounds.running());
}

TEST_F(PlanFollowerTest, RenewedLinkHearsOfTheNewestResultAndGetsTheContribution) {
  Plan();
  PushAll();
  former_->Close(absl::UnavailableError("reset"));
  node_.loop.Settle();
  FakeLink* const renewed = node_.tcp.Open();
  EXPECT_THAT(renewed->types(), ElementsAre(FrameType::kAck, FrameType::kContribution));
}

// The simulator has found it: the job waited for ever.
TEST_F(PlanFollowerTest, OwnerThatAnUpdateHasLeftOutIsConnectedAgain) {
  Plan();
  PushAll();
  google::protobuf::RepeatedPtrField<v1::ServerInfo> again;
  *again.Add() = node_.directory.servers.at(2);
  generation_.servers.Learn({});
  node_.loop.Settle();
  ASSERT_TRUE(former_->closed.has_value()) << "it is not in the plan any more";
  generation_.servers.Learn(again);
  generation_.Apply(FakeGeneration::PlanOf(6, "t", 2, {2}));
  FakeLink* const renewed = node_.tcp.Open();
  EXPECT_THAT(renewed->types(), ElementsAre(FrameType::kContribution));
}

TEST_F(PlanFollowerTest, MoveIsAcknowledgedWhenConnectedAndWhenFollowed) {
  Plan();
  generation_.Apply(Move(), /*change=*/4);
  generation_.plan.AckChange();
  EXPECT_THAT(node_.reports.said, IsEmpty());
  FakeLink* const next = node_.tcp.Open();
  EXPECT_THAT(node_.reports.said, ElementsAre("change 4 connected"));
  PushAll();
  EXPECT_EQ(former_->types().back(), FrameType::kContribution) << "it is the owner still";
  ASSERT_TRUE(former_->Deliver(Frame(FrameType::kMoved, 5, 0)).ok());
  EXPECT_THAT(node_.reports.said, ElementsAre("change 4 connected", "change 4 followed"));
  EXPECT_EQ(tensor_->owners[0].link->server(), ServerId(3));
  EXPECT_EQ(next->types().back(), FrameType::kContribution) << "of the round without a result";
}

TEST_F(PlanFollowerTest, HandoverAfterALostResultAsksForItFirst) {
  Plan();
  generation_.Apply(Move(), /*change=*/4);
  node_.tcp.Open();
  PushAll();
  ASSERT_TRUE(former_->Deliver(Frame(FrameType::kMoved, 5, 1)).ok());
  EXPECT_EQ(former_->types().back(), FrameType::kAck);
  EXPECT_EQ(tensor_->owners[0].link->server(), ServerId(2));
}

TEST_F(PlanFollowerTest, HandoverToAnUnannouncedOwnerIsIgnored) {
  Plan();
  ASSERT_TRUE(former_->Deliver(Frame(FrameType::kMoved, 5, 0)).ok());
  EXPECT_EQ(tensor_->owners[0].link->server(), ServerId(2));
}

TEST_F(PlanFollowerTest, RemovedTensorIsForgotten) {
  Plan();
  generation_.Apply(Move(), /*change=*/4);
  node_.tcp.Open();
  v1::NodeUpdate update;
  update.set_change(4);
  update.add_removed(6);
  generation_.plan.Apply(update);
  EXPECT_EQ(generation_.tensors.ById(TensorId(6)), nullptr);
  generation_.plan.AckChange();
  EXPECT_THAT(node_.reports.said, ElementsAre("change 4 connected", "change 4 followed"));
}

}  // namespace
}  // namespace addend
