// When a generation fails, and when its trainers are told.
#include "services/worker_agent/generation_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lib/base/failure.h"
#include "lib/client/addend.h"
#include "tests/unit/worker_agent/fake_generation.h"

namespace addend {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

class GenerationStateTest : public ::testing::Test {
 protected:
  // A round of the tensor "t", whose owner has yet to answer.
  void StartRound() {
    tensor_ = generation_.Declare(Floats("t", 4));
    generation_.Apply(FakeGeneration::PlanOf(6, "t", 4, {2}));
    link_ = node_.tcp.Open();
    for (uint32_t rank = 0; rank < 2; ++rank) {
      ASSERT_TRUE(generation_.Push(tensor_, rank, {1, 2, 3, 4}).ok());
    }
    node_.loop.Settle();
    ASSERT_TRUE(tensor_->rounds.running());
    for (auto& trainer : generation_.trainers) trainer->sent.clear();
    node_.reports.said.clear();
  }
  std::vector<ipc::Type> Told() const { return generation_.trainers[0]->types(); }

  const absl::Status lost_ = MakeFailure(FailureKind::kPeerLost, "node 0 was lost");
  FakeNode node_;
  FakeGeneration generation_{&node_};
  GenerationState& state_ = generation_.state;
  std::shared_ptr<NodeTensor> tensor_;
  FakeLink* link_ = nullptr;
};

TEST_F(GenerationStateTest, WithoutAStartedRoundTrainersAreToldAtOnce) {
  state_.OnAllDecided();
  state_.Fail(lost_);
  EXPECT_THAT(node_.reports.said, ElementsAre("failed peer_lost: node 0 was lost"));
  EXPECT_FALSE(state_.running());
  EXPECT_THAT(Told(), IsEmpty()) << "not within the call";
  node_.loop.Settle();
  EXPECT_TRUE(state_.failed());
  EXPECT_THAT(Told(), ElementsAre(ipc::Type::kFailure));
  const auto failure = generation_.trainers[1]->Last<ipc::FailureMessage>();
  EXPECT_EQ(failure.code, uint32_t{ADDEND_ERROR_PEER_LOST});
  EXPECT_EQ(failure.reason, "node 0 was lost");
  EXPECT_THAT(generation_.events, ElementsAre("failed, decided"));
  EXPECT_EQ(node_.job.state, v1::FAILED);
  EXPECT_EQ(node_.job.reason, "node 0 was lost");
}

// Their end may be the node's, and another node may still wait for a result that this node holds.
TEST_F(GenerationStateTest, TrainersAreToldWhenAllNodesHaveTheirDecisions) {
  StartRound();
  state_.Fail(lost_);
  EXPECT_FALSE(state_.decided());
  EXPECT_THAT(node_.reports.said, Not(Contains("beat")));
  const auto result = FloatBytes({1, 1, 1, 1});
  ASSERT_TRUE(link_->Deliver(generation_.FrameOf(FrameType::kResult, *tensor_, 0), result).ok());
  node_.loop.Settle();
  EXPECT_TRUE(state_.decided());
  EXPECT_EQ(node_.reports.said.back(), "beat") << "the scheduler hears at once";
  EXPECT_THAT(Told(), ElementsAre(ipc::Type::kResult));
  state_.EndIfDecided();
  node_.loop.Settle();
  EXPECT_THAT(Told(), ElementsAre(ipc::Type::kResult));
  EXPECT_EQ(node_.reports.said.size(), 2u) << "once";
  state_.OnAllDecided();
  node_.loop.Settle();
  EXPECT_THAT(Told(), ElementsAre(ipc::Type::kResult, ipc::Type::kFailure));
  EXPECT_TRUE(state_.decided());
  EXPECT_THAT(generation_.events, Contains("failed, decided"));
}

TEST_F(GenerationStateTest, NodeThatHasItsDecisionsWaitsForOthersForALease) {
  state_.Fail(lost_);
  node_.loop.Pass(absl::Seconds(9));
  EXPECT_THAT(Told(), IsEmpty());
  node_.loop.Pass(absl::Seconds(2));
  EXPECT_THAT(Told(), ElementsAre(ipc::Type::kFailure));
  EXPECT_THAT(generation_.events, ElementsAre("failed, decided")) << "it keeps its links";
}

// The node may be idle already, and has to follow what the scheduler says of the next generation.
TEST_F(GenerationStateTest, NodeWithoutTrainersWaitsForNobody) {
  state_.Fail(lost_);
  node_.loop.Settle();
  EXPECT_FALSE(state_.failed());
  for (const auto& trainer : generation_.trainers) generation_.ranks.Leave(trainer.get());
  state_.EndIfDecided();
  node_.loop.Settle();
  EXPECT_TRUE(state_.failed());
}

TEST_F(GenerationStateTest, SingleNodeWaitsForNobody) {
  node_.options.num_nodes = 1;
  FakeGeneration alone(&node_);
  alone.state.Fail(lost_);
  node_.loop.Settle();
  EXPECT_THAT(alone.trainers[0]->types(), ElementsAre(ipc::Type::kFailure));
}

TEST_F(GenerationStateTest, StartedRoundEndsBeforeTrainersAreTold) {
  StartRound();
  state_.OnAllDecided();
  state_.Fail(lost_);
  node_.loop.Settle();
  EXPECT_THAT(Told(), IsEmpty());
  const auto result = FloatBytes({1, 1, 1, 1});
  ASSERT_TRUE(link_->Deliver(generation_.FrameOf(FrameType::kResult, *tensor_, 0), result).ok());
  node_.loop.Settle();
  EXPECT_THAT(Told(), ElementsAre(ipc::Type::kResult, ipc::Type::kFailure));
}

TEST_F(GenerationStateTest, AbortedRoundIsDecided) {
  StartRound();
  state_.OnAllDecided();
  state_.Fail(lost_);
  ASSERT_TRUE(link_->Deliver(generation_.FrameOf(FrameType::kAborted, *tensor_, 0)).ok());
  node_.loop.Settle();
  EXPECT_THAT(Told(), ElementsAre(ipc::Type::kFailure));
}

TEST_F(GenerationStateTest, WithoutADecisionTrainersAreToldALeaseLater) {
  StartRound();
  state_.Fail(lost_);
  node_.loop.Pass(absl::Seconds(9));
  EXPECT_THAT(Told(), IsEmpty());
  node_.loop.Pass(absl::Seconds(2));
  EXPECT_THAT(Told(), ElementsAre(ipc::Type::kFailure));
  EXPECT_THAT(generation_.events, Contains("failed"));
}

TEST_F(GenerationStateTest, OnlyTheFirstFailureOfTheNodeCounts) {
  StartRound();
  state_.Fail(lost_);
  state_.Fail(absl::InternalError("another"));
  EXPECT_EQ(state_.why(), lost_);
  EXPECT_EQ(node_.reports.said.size(), 1u);
  EXPECT_THAT(node_.counters.failures,
              ElementsAre(std::pair<const std::string, uint64_t>(CauseOf(lost_), 1)));
}

TEST_F(GenerationStateTest, EndThatNoRankMissesIsNoFailure) {
  for (auto& trainer : generation_.trainers) ASSERT_TRUE(generation_.ranks.Leave(trainer.get()));
  state_.FailAsTold(MakeFailure(FailureKind::kTemporary, "the agent of node 0 was stopped"));
  EXPECT_THAT(node_.counters.failures, IsEmpty());
}

TEST_F(GenerationStateTest, LossOfTheLastRankIsAFailure) {
  for (auto& trainer : generation_.trainers) ASSERT_TRUE(generation_.ranks.Leave(trainer.get()));
  state_.Fail(lost_);
  EXPECT_EQ(node_.counters.failures.size(), 1u);
}

TEST_F(GenerationStateTest, SchedulersReasonReplacesTheNodesUntilTrainersAreTold) {
  StartRound();
  state_.Fail(lost_);
  state_.FailAsTold(MakeFailure(FailureKind::kStalled, "a rank stalled"));
  EXPECT_EQ(state_.why().message(), "a rank stalled");
  EXPECT_EQ(node_.reports.said.size(), 1u) << "the scheduler knows";
  state_.End(/*decided=*/false);
  EXPECT_EQ(generation_.trainers[0]->Last<ipc::FailureMessage>().code,
            uint32_t{ADDEND_ERROR_STALLED});
  state_.FailAsTold(lost_);
  EXPECT_EQ(state_.why().message(), "a rank stalled") << "the trainers were told";
}

TEST_F(GenerationStateTest, RunningGenerationDoesNotEnd) {
  state_.End(/*decided=*/false);
  state_.EndIfDecided();
  node_.loop.Settle();
  EXPECT_TRUE(state_.running());
  EXPECT_THAT(Told(), IsEmpty());
}

}  // namespace
}  // namespace addend
