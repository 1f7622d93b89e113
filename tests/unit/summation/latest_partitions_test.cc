// The protocol of asynchronous partitions: updates, answers, and the restoration of the value.
#include "lib/summation/latest_partitions.h"

#include <gtest/gtest.h>

#include "tests/unit/summation/job_fixture.h"

namespace addend {
namespace {

using Floats = std::vector<float>;

class LatestPartitionsTest : public JobFixture {
 protected:
  LatestPartitionsTest() {
    op_ = ReduceOp::kAccumulate;
    job_.server = &server_;
    job_.spec = spec_;
    job_.memory = memory_;
    for (uint32_t i = 0; i < 2; ++i) {
      nodes_.push_back(MakeNode());
      nodes_.back()->port.Join(&job_, NodeId(i));
      nodes_.back()->port.Attach();
      job_.nodes.Set(NodeId(i), &nodes_.back()->port);
    }
  }
  void Add(uint64_t version = 0) {
    latest_->Add(std::make_shared<LatestPartition>(Spec(0, version), memory_));
  }
  absl::Status Push(uint32_t node, uint64_t round, float value) {
    return Deliver(latest_.get(), nodes_[node].get(),
                   Header(FrameType::kContribution, node, 0, round), {value});
  }
  absl::Status Report(uint32_t node, uint64_t held, const Stamp& stamp) {
    const std::vector<std::byte> bytes = EncodeStamp(stamp);
    FrameHeader header = Header(FrameType::kRecover, node, 0, held);
    header.payload_bytes = static_cast<uint32_t>(bytes.size());
    const MutableBytes room = *latest_->Place(&nodes_[node]->port, header);
    std::copy(bytes.begin(), bytes.end(), room.begin());
    return latest_->OnFrame(&nodes_[node]->port, header, Payload(Bytes(room)));
  }
  RecordingLink& link(uint32_t node) { return nodes_[node]->link; }

  JobState job_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::unique_ptr<LatestPartitions> latest_ =
      std::make_unique<LatestPartitions>(&job_, &context_, [](PartitionId) { return nullptr; });
};

TEST_F(LatestPartitionsTest, UpdateIsAnsweredWithItsStampAndTheLatestValue) {
  Add();
  ASSERT_TRUE(Push(1, 1, 2).ok() && Push(0, 1, 5).ok());
  ASSERT_EQ(link(0).frames.size(), 2u) << "no frame for the update of the other node";
  EXPECT_EQ(link(0).frames[0].header.type, FrameType::kStamp);
  EXPECT_EQ(DecodeStamp(link(0).frames[0].payload, 2)->applied, (std::vector<uint64_t>{1, 1}));
  EXPECT_EQ(link(0).frames[1].values(), Floats{7});
  EXPECT_EQ(context_.stats.updates_applied, 2u);
}

TEST_F(LatestPartitionsTest, RepeatedUpdateIsAnsweredAndNotAddedAgain) {
  Add();
  ASSERT_TRUE(Push(0, 1, 5).ok());
  link(0).Finish();
  ASSERT_TRUE(Push(0, 1, 5).ok());
  EXPECT_EQ(link(0).frames.back().values(), Floats{5});
  EXPECT_EQ(context_.stats.updates_applied, 1u);
}

TEST_F(LatestPartitionsTest, UpdateOfAFutureRoundIsRefused) {
  Add();
  EXPECT_TRUE(absl::IsInvalidArgument(Push(0, 2, 5)));
}

TEST_F(LatestPartitionsTest, MostRecentCopyBecomesTheValueOfTheNewOwner) {
  plan_ = PlanVersion(5);
  Add(5);
  ASSERT_TRUE(Report(0, 3, {.updates = 6, .applied = {3, 3}}).ok());
  ASSERT_TRUE(Report(1, 2, {.updates = 5, .applied = {3, 2}}).ok());
  ASSERT_EQ(link(0).Last().type, FrameType::kSendAgain);
  ASSERT_TRUE(
      Deliver(latest_.get(), nodes_[0].get(), Header(FrameType::kResult, 0, 0, 3), {42}).ok());
  ASSERT_EQ(link(1).Count(FrameType::kRecover), 1u);
  EXPECT_EQ(link(1).frames[0].header.round, Round(3)) << "the copy includes its round 3";
  EXPECT_EQ(link(1).frames.back().values(), Floats{42});
  EXPECT_EQ(link(0).Count(FrameType::kResult), 0u) << "it has its answer";
  ASSERT_TRUE(Push(1, 4, 1).ok());
  EXPECT_EQ(link(1).frames.back().values(), Floats{43});
}

TEST_F(LatestPartitionsTest, LossOfTheHolderCountsTheUpdatesThatNoOtherCopyIncludes) {
  plan_ = PlanVersion(5);
  Add(5);
  ASSERT_TRUE(Report(0, 3, {.updates = 6, .applied = {3, 3}}).ok());
  ASSERT_TRUE(Report(1, 2, {.updates = 4, .applied = {2, 2}}).ok());
  job_.spec.lost.insert(NodeId(0));
  job_.nodes.Erase(NodeId(0));
  latest_->Lose(PartitionAt(0), NodeId(0));
  ASSERT_EQ(link(1).Last().type, FrameType::kSendAgain);
  latest_->Lose(PartitionAt(0), NodeId(0));
  EXPECT_EQ(link(1).Count(FrameType::kSendAgain), 1u) << "a loss that is known has no effect";
  ASSERT_TRUE(
      Deliver(latest_.get(), nodes_[1].get(), Header(FrameType::kResult, 1, 0, 2), {7}).ok());
  EXPECT_EQ(context_.stats.updates_lost, 1u);
}

TEST_F(LatestPartitionsTest, PartitionIsHandedOverBetweenTwoUpdates) {
  Add();
  ASSERT_TRUE(Push(1, 1, 2).ok());
  latest_->HandOver(PartitionAt(0), PlanVersion(5));
  EXPECT_EQ(link(0).Last().type, FrameType::kMoved);
  EXPECT_EQ(link(0).Last().round, Round(0));
  EXPECT_EQ(link(1).Last().round, Round(1));
  ASSERT_TRUE(Push(0, 1, 2).ok());
  EXPECT_EQ(context_.stats.updates_applied, 1u);
}

TEST_F(LatestPartitionsTest, FailedGenerationAddsNoUpdateEvenBeforeThePartitionIsAborted) {
  Add();
  job_.spec.failed = true;
  ASSERT_TRUE(Push(0, 1, 2).ok());
  EXPECT_EQ(link(0).Last().type, FrameType::kAborted);
  EXPECT_EQ(context_.stats.updates_applied, 0u);
}

TEST_F(LatestPartitionsTest, RollCallNamesTheNodesWhoseReportsAreMissing) {
  Add(5);
  ASSERT_TRUE(Report(1, 2, {.updates = 4, .applied = {2, 2}}).ok()) << "of an old plan";
  plan_ = PlanVersion(5);
  ASSERT_TRUE(Report(1, 2, {.updates = 4, .applied = {2, 2}}).ok());
  std::vector<OpenRoundInfo> open;
  latest_->RollCall(10, &open);
  ASSERT_EQ(open.size(), 1u);
  EXPECT_EQ(open[0].missing, std::vector<NodeId>{NodeId(0)});
  EXPECT_EQ(open[0].state, "recovering");
}

TEST_F(LatestPartitionsTest, AnswerThatIsSentAfterTheJobHasEndedHasNoEffect) {
  Add();
  ASSERT_TRUE(Push(0, 1, 2).ok());
  latest_.reset();
  link(0).Finish();
}

}  // namespace
}  // namespace addend
