// A round's five steps, from the ranks' pushes to their result.
#include "services/worker_agent/round_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lib/base/failure.h"
#include "lib/client/addend.h"
#include "lib/wire/stamp.h"
#include "tests/unit/worker_agent/fake_generation.h"

namespace addend {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class RoundRunnerTest : public ::testing::Test {
 protected:
  // Two partitions of two elements on server 2, whose link is open.
  void Plan(ReduceOp op = ReduceOp::kSum) {
    tensor_ = generation_.Declare(Floats("t", 4, op));
    generation_.Apply(FakeGeneration::PlanOf(6, "t", 2, {2, 2}));
    link_ = node_.tcp.Open();
    link_->frames.clear();
  }
  void PushAll(int32_t priority = 0) {
    ASSERT_TRUE(generation_.Push(tensor_, 0, {1, 2, 3, 4}, priority).ok());
    ASSERT_TRUE(generation_.Push(tensor_, 1, {10, 20, 30, 40}, priority).ok());
    node_.loop.Settle();
  }
  absl::Status Result(uint32_t partition, const std::vector<float>& values, uint16_t flags = 0) {
    FrameHeader header = generation_.FrameOf(FrameType::kResult, *tensor_, partition);
    header.flags = flags;
    return link_->Deliver(header, FloatBytes(values));
  }
  FakeTrainer& trainer(uint32_t rank) { return *generation_.trainers[rank]; }

  FakeNode node_;
  FakeGeneration generation_{&node_};
  std::shared_ptr<NodeTensor> tensor_;
  FakeLink* link_ = nullptr;
};

TEST_F(RoundRunnerTest, ConvoyHearsOfThePushes) {
  Plan();
  for (const int32_t priority : {-7, -6, -5, -4, -3, -2, -1, 0, -7}) {
    PushAll(priority);
    for (const uint32_t partition : {0, 1}) ASSERT_TRUE(Result(partition, {0, 0}).ok());
  }
  // A class of a backward pass keeps the order of its pushes.
  Outbox outbox(&node_.convoy, [](bool) {});
  for (const int32_t priority : {-7, -6}) {
    FrameHeader header;
    header.priority = priority;
    outbox.Push(header, {}, nullptr);
  }
  link_->frames.clear();
  outbox.Attach(link_, Traits());
  ASSERT_EQ(link_->frames.size(), 2u);
  EXPECT_EQ(link_->frames[0].header.priority, -7);
}

TEST_F(RoundRunnerTest, NodesSumIsPushedWhenAllRanksHavePushed) {
  Plan();
  ASSERT_TRUE(generation_.Push(tensor_, 0, {1, 2, 3, 4}, 3).ok());
  EXPECT_THAT(link_->frames, IsEmpty());
  ASSERT_TRUE(generation_.Push(tensor_, 1, {10, 20, 30, 40}, 3).ok());
  node_.loop.Settle();
  ASSERT_THAT(link_->types(), ElementsAre(FrameType::kContribution, FrameType::kContribution));
  const FakeLink::Frame& first = link_->frames[0];
  EXPECT_EQ(first.payload, FloatBytes({11, 22}));
  EXPECT_EQ(first.header.partition, PartitionId(TensorId(6), 0));
  EXPECT_EQ(first.header.round, Round(1));
  EXPECT_EQ(first.header.priority, 3);
  EXPECT_EQ(first.header.sender, 1u);
  EXPECT_EQ(first.header.contributors, 1u);
  EXPECT_EQ(link_->frames[1].payload, FloatBytes({33, 44}));
  EXPECT_EQ(node_.counters.partitions_out, 2u);
}

TEST_F(RoundRunnerTest, RanksAreToldWhenAllResultsAreInTheirSlot) {
  Plan();
  PushAll();
  ASSERT_TRUE(Result(1, {7, 8}).ok());
  EXPECT_THAT(trainer(0).types(), IsEmpty());
  ASSERT_TRUE(Result(0, {5, 6}).ok());
  ASSERT_THAT(trainer(0).types(), ElementsAre(ipc::Type::kResult));
  EXPECT_EQ(trainer(1).Last<ipc::ResultMessage>().round, 1u);
  EXPECT_EQ(trainer(1).Last<ipc::ResultMessage>().code, 0u);
  const Bytes slot = tensor_->ResultSlot(Round(1));
  EXPECT_EQ(std::vector<std::byte>(slot.begin(), slot.end()), FloatBytes({5, 6, 7, 8}));
  EXPECT_EQ(tensor_->rounds.round(), Round(2));
  EXPECT_EQ(node_.counters.rounds, 1u);
}

// The other nodes may have completed the round without this node.
TEST_F(RoundRunnerTest, AfterAPauseRanksAreToldWhenTheSchedulerHasConfirmedTheNode) {
  Plan();
  PushAll();
  generation_.rounds.NotePause();
  node_.loop.Pass(absl::Seconds(8));
  node_.reports.said.clear();
  ASSERT_TRUE(Result(0, {5, 6}).ok());
  ASSERT_TRUE(Result(1, {7, 8}).ok());
  EXPECT_THAT(trainer(0).types(), IsEmpty());
  EXPECT_THAT(node_.reports.said, ElementsAre("beat"));
  ASSERT_TRUE(node_.pulse.Confirm(node_.pulse.question()));
  generation_.rounds.OnPauseConfirmed();
  EXPECT_THAT(trainer(0).types(), ElementsAre(ipc::Type::kResult));
  EXPECT_EQ(tensor_->rounds.round(), Round(2));
}

TEST_F(RoundRunnerTest, NodeThatIsLostInAPauseTellsNoResult) {
  Plan();
  PushAll();
  generation_.rounds.NotePause();
  node_.loop.Pass(absl::Seconds(8));
  ASSERT_TRUE(Result(0, {5, 6}).ok());
  ASSERT_TRUE(Result(1, {7, 8}).ok());
  generation_.state.FailAsTold(MakeFailure(FailureKind::kPeerLost, "node 1 was lost"));
  generation_.state.End(/*decided=*/false);
  EXPECT_THAT(trainer(0).types(), ElementsAre(ipc::Type::kFailure));
  generation_.rounds.OnPauseConfirmed();
  EXPECT_THAT(trainer(0).types(), ElementsAre(ipc::Type::kFailure));
}

TEST_F(RoundRunnerTest, RepeatedAndLateResultsHaveNoRoom) {
  Plan();
  PushAll();
  ASSERT_TRUE(Result(0, {5, 6}).ok());
  ASSERT_TRUE(Result(0, {9, 9}).ok());
  const Bytes slot = tensor_->ResultOf(0, Round(1));
  EXPECT_EQ(std::vector<std::byte>(slot.begin(), slot.end()), FloatBytes({5, 6}));
  FrameHeader late = generation_.FrameOf(FrameType::kResult, *tensor_, 1);
  late.round = Round(2);
  ASSERT_TRUE(link_->Deliver(late, FloatBytes({9, 9})).ok());
  FrameHeader short_result = generation_.FrameOf(FrameType::kResult, *tensor_, 1);
  ASSERT_TRUE(link_->Deliver(short_result, FloatBytes({9})).ok());
  EXPECT_TRUE(tensor_->rounds.Wants(1, Round(1)));
}

TEST_F(RoundRunnerTest, RoundWaitsForThePlan) {
  tensor_ = generation_.Declare(Floats("t", 4));
  PushAll();
  EXPECT_FALSE(tensor_->rounds.running());
  generation_.Apply(FakeGeneration::PlanOf(6, "t", 2, {2, 2}));
  EXPECT_TRUE(tensor_->rounds.running());
}

TEST_F(RoundRunnerTest, NoRoundStartsInAFailingGeneration) {
  Plan();
  generation_.state.Fail(MakeFailure(FailureKind::kPeerLost, "lost"));
  PushAll();
  EXPECT_THAT(link_->frames, IsEmpty());
}

TEST_F(RoundRunnerTest, TensorWithoutElementsCompletesAtOnce) {
  tensor_ = generation_.Declare(Floats("t", 0));
  generation_.Apply(FakeGeneration::PlanOf(6, "t", 2, {}));
  ASSERT_TRUE(generation_.Push(tensor_, 0, {}).ok());
  ASSERT_TRUE(generation_.Push(tensor_, 1, {}).ok());
  EXPECT_THAT(trainer(0).types(), ElementsAre(ipc::Type::kResult));
}

TEST_F(RoundRunnerTest, PushOfAnotherRoundBreaksTheProtocol) {
  Plan();
  ASSERT_TRUE(generation_.Push(tensor_, 0, {1, 2, 3, 4}).ok());
  EXPECT_FALSE(generation_.Push(tensor_, 0, {1, 2, 3, 4}).ok());
}

TEST_F(RoundRunnerTest, TwoLocalRootsFailTheGeneration) {
  Plan(ReduceOp::kBroadcast);
  PushAll();
  EXPECT_THAT(node_.reports.said,
              ::testing::Contains(HasSubstr("failed mismatch: local ranks 0 and 1 both sent")));
}

TEST_F(RoundRunnerTest, OwnerThatAsksAgainGetsTheContributionUrgently) {
  Plan();
  PushAll(3);
  link_->frames.clear();
  ASSERT_TRUE(link_->Deliver(generation_.FrameOf(FrameType::kSendAgain, *tensor_, 1)).ok());
  ASSERT_THAT(link_->types(), ElementsAre(FrameType::kContribution));
  EXPECT_EQ(link_->frames[0].header.priority, INT32_MAX);
  EXPECT_EQ(link_->frames[0].payload, FloatBytes({33, 44}));
  EXPECT_EQ(node_.counters.resent(), 1u);
}

TEST_F(RoundRunnerTest, OwnerThatAsksForAResultGetsTheHeldResult) {
  Plan();
  PushAll();
  ASSERT_TRUE(Result(0, {5, 6}).ok());
  link_->frames.clear();
  FrameHeader asked = generation_.FrameOf(FrameType::kSendAgain, *tensor_, 0);
  asked.flags = kFlagResult;
  ASSERT_TRUE(link_->Deliver(asked).ok());
  ASSERT_THAT(link_->types(), ElementsAre(FrameType::kResult));
  EXPECT_EQ(link_->frames[0].payload, FloatBytes({5, 6}));
  asked.partition = PartitionId(TensorId(6), 1);
  ASSERT_TRUE(link_->Deliver(asked).ok());
  EXPECT_EQ(link_->frames.size(), 1u) << "this node has no result of the other partition";
}

TEST_F(RoundRunnerTest, OnlyAwaitedContributionsAreSentAgain) {
  Plan();
  PushAll();
  ASSERT_TRUE(Result(0, {5, 6}).ok());
  link_->frames.clear();
  generation_.rounds.Resend(tensor_, 0);
  EXPECT_THAT(link_->frames, IsEmpty());
  generation_.rounds.Resend(tensor_, 1, /*held=*/Round(1));
  EXPECT_THAT(link_->frames, IsEmpty()) << "the owner holds the round";
  generation_.rounds.Resend(tensor_, 1, /*held=*/Round(0));
  EXPECT_EQ(link_->frames.size(), 1u);
}

TEST_F(RoundRunnerTest, OwnerThatRecoversGetsNoContribution) {
  Plan();
  tensor_->owners[0].reported = true;
  PushAll();
  ASSERT_EQ(link_->frames.size(), 1u);
  EXPECT_EQ(link_->frames[0].header.partition.index(), 1u);
}

TEST_F(RoundRunnerTest, FailedTensorAnswersEveryPush) {
  Plan();
  ASSERT_TRUE(generation_.Push(tensor_, 0, {1, 2, 3, 4}).ok());
  generation_.rounds.FailTensor(tensor_.get(), absl::ResourceExhaustedError("too large"));
  EXPECT_EQ(trainer(0).Last<ipc::ResultMessage>().code, uint32_t{ADDEND_ERROR_RESOURCES});
  EXPECT_THAT(trainer(1).types(), IsEmpty()) << "it has not pushed";
  ASSERT_TRUE(generation_.Push(tensor_, 1, {1, 2, 3, 4}).ok());
  EXPECT_EQ(trainer(1).Last<ipc::ResultMessage>().reason, "too large");
  EXPECT_TRUE(generation_.state.running());
}

// The node that declared the tensor otherwise was lost, and the others' round completes.
TEST_F(RoundRunnerTest, RefusedTensorTellsNoResult) {
  Plan();
  PushAll();
  ASSERT_TRUE(Result(0, {5, 6}).ok());
  generation_.rounds.FailTensor(tensor_.get(), absl::FailedPreconditionError("it differs"));
  ASSERT_TRUE(Result(1, {7, 8}).ok());
  EXPECT_THAT(trainer(0).types(), ElementsAre(ipc::Type::kResult));
  EXPECT_EQ(trainer(0).Last<ipc::ResultMessage>().reason, "it differs");
}

TEST_F(RoundRunnerTest, RefusedTensorBeginsNoRoundWhenItsPlanComes) {
  tensor_ = generation_.Declare(Floats("t", 4));
  PushAll();
  generation_.rounds.FailTensor(tensor_.get(), absl::FailedPreconditionError("it differs"));
  generation_.Apply(FakeGeneration::PlanOf(6, "t", 2, {2, 2}));
  EXPECT_FALSE(tensor_->rounds.running());
}

TEST_F(RoundRunnerTest, AbortedBroadcastFailsTheTensorAlone) {
  Plan(ReduceOp::kBroadcast);
  ASSERT_TRUE(generation_.Push(tensor_, 0, {}).ok());
  ASSERT_TRUE(generation_.Push(tensor_, 1, {}).ok());
  FrameHeader aborted = generation_.FrameOf(FrameType::kAborted, *tensor_, 0);
  aborted.flags = kFlagEmpty;
  ASSERT_TRUE(link_->Deliver(aborted).ok());
  EXPECT_THAT(trainer(0).Last<ipc::ResultMessage>().reason,
              HasSubstr("the root of broadcast 't' is on a node"));
  EXPECT_TRUE(generation_.state.running());
}

TEST_F(RoundRunnerTest, AsynchronousResultKeepsItsStamp) {
  Plan(ReduceOp::kAccumulate);
  PushAll();
  const std::vector<std::byte> stamp(StampBytes(2), std::byte{5});
  ASSERT_TRUE(link_->Deliver(generation_.FrameOf(FrameType::kStamp, *tensor_, 0), stamp).ok());
  EXPECT_THAT(tensor_->stamps[0].held, IsEmpty()) << "its result has not come";
  ASSERT_TRUE(Result(0, {5, 6}).ok());
  EXPECT_EQ(tensor_->stamps[0].held, stamp);
}

TEST_F(RoundRunnerTest, ResultThatAFailedGenerationDoesNotTakeLeavesTheStampAsItIs) {
  Plan(ReduceOp::kAccumulate);
  PushAll();
  generation_.state.Fail(MakeFailure(FailureKind::kPeerLost, "lost"));
  generation_.state.End(/*decided=*/false);
  const std::vector<std::byte> stamp(StampBytes(2), std::byte{5});
  ASSERT_TRUE(link_->Deliver(generation_.FrameOf(FrameType::kStamp, *tensor_, 0), stamp).ok());
  ASSERT_TRUE(Result(0, {5, 6}).ok());
  EXPECT_EQ(tensor_->rounds.Held(0), Round(0));
  EXPECT_THAT(tensor_->stamps[0].held, IsEmpty()) << "a new owner would take round 0 for round 1";
}

// A source that decides when contributions are ready, and when rounds may end.
class HeldSource final : public ContributionSource {
 public:
  void OnPush(const std::shared_ptr<NodeTensor>&, uint32_t, bool) override {}
  void Begin(PartitionPush push) override { begun.push_back(std::move(push)); }
  bool Reads(const PartitionPush&) override { return readable; }
  bool MayEnd(const NodeTensor&, uint32_t, bool) const override { return !copies; }
  void Bring(const std::shared_ptr<NodeTensor>&, uint32_t, Then then) override {
    brought.push_back(std::move(then));
  }
  void OnDelivered(const NodeTensor&, uint32_t partition) override {
    delivered.push_back(partition);
  }
  std::vector<uint32_t> RanksIn(const NodeTensor&, uint32_t) const override { return {0, 1}; }
  std::string WhyOpen(const NodeTensor&) const override { return ""; }
  void Forget(const NodeTensor&) override {}
  void Stop() override {}

  bool readable = true;
  bool copies = false;
  std::vector<PartitionPush> begun;
  std::vector<Then> brought;
  std::vector<uint32_t> delivered;
};

class HeldSourceTest : public RoundRunnerTest {
 protected:
  void SetUp() override {
    generation_.rounds.Use(&source_);
    Plan();
    PushAll();
    ASSERT_EQ(source_.begun.size(), 2u);
  }
  HeldSource source_;
};

TEST_F(HeldSourceTest, ContributionIsSentWhenItIsReady) {
  EXPECT_THAT(link_->frames, IsEmpty());
  generation_.rounds.OnReady(source_.begun[1]);
  ASSERT_EQ(link_->frames.size(), 1u);
  EXPECT_EQ(link_->frames[0].header.partition.index(), 1u);
}

TEST_F(HeldSourceTest, UnreadableContributionIsSentWhenItIsReadable) {
  source_.readable = false;
  generation_.rounds.OnReady(source_.begun[0]);
  EXPECT_THAT(link_->frames, IsEmpty());
  source_.readable = true;
  generation_.rounds.OnReadable(source_.begun[0]);
  EXPECT_EQ(link_->frames.size(), 1u);
}

TEST_F(HeldSourceTest, ResultWaitsForCopiesOfTheContribution) {
  for (const PartitionPush& push : source_.begun) generation_.rounds.OnReady(push);
  source_.copies = true;
  ASSERT_TRUE(Result(0, {5, 6}).ok());
  EXPECT_THAT(source_.delivered, IsEmpty());
  source_.brought.at(0)(true);
  EXPECT_THAT(source_.delivered, ElementsAre(0));
}

TEST_F(HeldSourceTest, ResultOfAFormerOwnerIsNotDeliveredLate) {
  for (const PartitionPush& push : source_.begun) generation_.rounds.OnReady(push);
  source_.copies = true;
  ASSERT_TRUE(Result(0, {5, 6}).ok());
  tensor_->owners[0].reported = true;  // a new owner was told that this node lacks the result
  source_.brought.at(0)(true);
  EXPECT_THAT(source_.delivered, IsEmpty());
}

class HeldAsynchronousTest : public HeldSourceTest {
 protected:
  void SetUp() override {
    generation_.rounds.Use(&source_);
    Plan(ReduceOp::kAccumulate);
    PushAll();
    for (const PartitionPush& push : source_.begun) generation_.rounds.OnReady(push);
    source_.copies = true;
    ASSERT_TRUE(Result(0, {5, 6}).ok());
  }
};

TEST_F(HeldAsynchronousTest, NoLaterValueReplacesTheOneThatWaits) {
  ASSERT_TRUE(Result(0, {7, 8}).ok());
  source_.brought.at(0)(true);
  EXPECT_THAT(source_.delivered, ElementsAre(0));
  const Bytes slot = tensor_->ResultOf(0, Round(1));
  EXPECT_EQ(std::vector<std::byte>(slot.begin(), slot.end()), FloatBytes({5, 6}));
}

TEST_F(HeldAsynchronousTest, UpdateIsSentAgainWhereTheNewOwnersAnswerMayHaveBeenRefused) {
  link_->frames.clear();
  tensor_->owners[0].version = PlanVersion(9);  // a new owner, which has said what comes next
  source_.brought.at(0)(true);
  EXPECT_THAT(source_.delivered, IsEmpty());
  ASSERT_THAT(link_->types(), ElementsAre(FrameType::kContribution));
  link_->frames.clear();
  FrameHeader answer = generation_.FrameOf(FrameType::kResult, *tensor_, 0);
  answer.plan_version = PlanVersion(9);
  ASSERT_TRUE(link_->Deliver(answer, FloatBytes({7, 8})).ok());
  EXPECT_EQ(source_.brought.size(), 2u);
}

}  // namespace
}  // namespace addend
