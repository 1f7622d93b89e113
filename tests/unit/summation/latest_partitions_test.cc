// The protocol of asynchronous partitions: updates, answers, and the restoration of the value.
#include "lib/summation/latest_partitions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/summation/job_fixture.h"

namespace addend {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
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
      nodes_.back()->port.Attach(/*encodes=*/true);
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
  // The node has no copy.
  absl::Status ReportNothing(uint32_t node) {
    return latest_->OnFrame(&nodes_[node]->port, Header(FrameType::kRecover, node), Payload());
  }
  absl::Status Supply(uint32_t node, uint64_t round, const Floats& copy) {
    return Deliver(latest_.get(), nodes_[node].get(), Header(FrameType::kResult, node, 0, round),
                   copy);
  }
  void Sync(uint32_t node, uint64_t held) {
    EXPECT_TRUE(
        latest_->OnFrame(&nodes_[node]->port, Header(FrameType::kAck, node, 0, held), Payload())
            .ok());
  }
  // The new owner of version 5 knows both copies, of which that of node 0 is the most recent.
  void AwaitCopyOfNode0() {
    plan_ = PlanVersion(5);
    Add(5);
    ASSERT_TRUE(Report(0, 3, {.updates = 6, .applied = {3, 3}}).ok());
    ASSERT_TRUE(Report(1, 2, {.updates = 5, .applied = {3, 2}}).ok());
  }
  void ReadAll() {
    for (const auto& node : nodes_) node->link.ReadAll();
  }
  std::vector<OpenRoundInfo> RollCall(size_t limit = 10) {
    std::vector<OpenRoundInfo> open;
    latest_->RollCall(limit, &open);
    return open;
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

TEST_F(LatestPartitionsTest, OrdersAndFramesAboutAPartitionThatIsNotHereHaveNoEffect) {
  latest_->TakeOver(PartitionAt(0), PlanVersion(5));
  latest_->HandOver(PartitionAt(0), PlanVersion(5));
  latest_->Abort(PartitionAt(0));
  latest_->Lose(PartitionAt(0), NodeId(1));
  latest_->Drop(PartitionAt(0));
  EXPECT_TRUE(Push(0, 1, 1).ok());
  EXPECT_TRUE(ReportNothing(0).ok());
  Sync(0, 1);
  EXPECT_THAT(link(0).Types(), IsEmpty());
  EXPECT_EQ(job_.partitions, 0u);
  EXPECT_EQ(latest_->SpecOf(PartitionAt(0)), nullptr);
}

TEST_F(LatestPartitionsTest, UpdateForAFormerOwnershipOrDuringARestorationIsDropped) {
  AwaitCopyOfNode0();
  ReadAll();
  EXPECT_TRUE(Push(1, 3, 1).ok());
  EXPECT_THAT(link(1).Types(), IsEmpty()) << "the value is not there yet";
  ASSERT_TRUE(Supply(0, 3, {42}).ok());
  ReadAll();
  plan_ = PlanVersion(4);
  EXPECT_TRUE(Push(1, 4, 1).ok());
  EXPECT_THAT(link(1).Types(), IsEmpty());
  plan_ = PlanVersion(5);
  EXPECT_TRUE(Push(1, 2, 1).ok());
  EXPECT_THAT(link(1).Types(), IsEmpty()) << "it has the answer to this round";
  EXPECT_EQ(context_.stats.updates_applied, 0u);
}

TEST_F(LatestPartitionsTest, PayloadsThatNoFrameHasAreRefused) {
  Add(5);
  plan_ = PlanVersion(5);
  FrameHeader header = Header(FrameType::kAck, 0);
  header.payload_bytes = 24;
  EXPECT_TRUE(absl::IsInvalidArgument(latest_->Place(&nodes_[0]->port, header).status()));
  header = Header(FrameType::kRecover, 0);
  header.payload_bytes = static_cast<uint32_t>(StampBytes(3));
  EXPECT_TRUE(absl::IsInvalidArgument(latest_->Place(&nodes_[0]->port, header).status()));
}

TEST_F(LatestPartitionsTest, OnlyTheRequestedCopyIsTaken) {
  AwaitCopyOfNode0();
  ReadAll();
  EXPECT_TRUE(Supply(1, 2, {41}).ok());
  EXPECT_TRUE(Supply(0, 2, {41}).ok());
  plan_ = PlanVersion(4);
  EXPECT_TRUE(Supply(0, 3, {41}).ok());
  plan_ = PlanVersion(5);
  EXPECT_THAT(link(1).Types(), IsEmpty());
  ASSERT_EQ(RollCall().size(), 1u);
  ASSERT_TRUE(Supply(0, 3, {42}).ok());
  EXPECT_THAT(RollCall(), IsEmpty());
  ReadAll();
  EXPECT_TRUE(Supply(0, 3, {43}).ok());
  ASSERT_TRUE(Push(1, 4, 1).ok());
  EXPECT_EQ(link(1).frames.back().values(), Floats{43}) << "42 and 1";
}

TEST_F(LatestPartitionsTest, HolderThatReportsAgainIsAskedAgain) {
  AwaitCopyOfNode0();
  ReadAll();
  ASSERT_TRUE(Report(1, 2, {.updates = 5, .applied = {3, 2}}).ok());
  EXPECT_THAT(link(1).Types(), IsEmpty());
  ASSERT_TRUE(Report(0, 3, {.updates = 6, .applied = {3, 3}}).ok());
  ASSERT_THAT(link(0).Types(), ElementsAre(FrameType::kSendAgain));
  EXPECT_TRUE(link(0).Last().flags & kFlagResult);
  EXPECT_EQ(link(0).Last().round, Round(3));
}

TEST_F(LatestPartitionsTest, RepeatedReportIsAnsweredWithTheRoundAndAMissingAnswer) {
  AwaitCopyOfNode0();
  ASSERT_TRUE(Supply(0, 3, {42}).ok());
  ReadAll();
  ASSERT_TRUE(Report(0, 3, {.updates = 6, .applied = {3, 3}}).ok());
  EXPECT_THAT(link(0).Types(), ElementsAre(FrameType::kRecover));
  ASSERT_TRUE(Report(1, 2, {.updates = 5, .applied = {3, 2}}).ok());
  EXPECT_THAT(link(1).Types(),
              ElementsAre(FrameType::kRecover, FrameType::kStamp, FrameType::kResult));
}

TEST_F(LatestPartitionsTest, ValueWithoutAnyCopyIsEmpty) {
  plan_ = PlanVersion(5);
  Add(5);
  ASSERT_TRUE(ReportNothing(0).ok());
  EXPECT_THAT(link(0).Types(), IsEmpty()) << "node 1 may have a copy";
  ASSERT_TRUE(ReportNothing(1).ok());
  EXPECT_THAT(link(0).Types(), ElementsAre(FrameType::kRecover));
  EXPECT_THAT(RollCall(), IsEmpty());
  ASSERT_TRUE(Push(0, 1, 7).ok());
  EXPECT_EQ(link(0).frames.back().values(), Floats{7});
  EXPECT_EQ(context_.stats.updates_lost, 0u);
}

TEST_F(LatestPartitionsTest, NodeThatConnectsAgainLearnsOfTheHandOver) {
  Add();
  ASSERT_TRUE(Push(0, 1, 5).ok());
  ReadAll();
  Sync(0, 0);
  EXPECT_THAT(link(0).Types(), IsEmpty()) << "the partition is here";
  latest_->HandOver(PartitionAt(0), PlanVersion(5));
  ReadAll();
  Sync(0, 0);
  EXPECT_THAT(link(0).Types(),
              ElementsAre(FrameType::kStamp, FrameType::kResult, FrameType::kMoved));
  Sync(1, 0);
  EXPECT_THAT(link(1).Types(), ElementsAre(FrameType::kMoved));
  ReadAll();
  plan_ = PlanVersion(5);
  Sync(0, 0);
  EXPECT_THAT(link(0).Types(), IsEmpty()) << "it follows the next owner";
}

TEST_F(LatestPartitionsTest, FailedGenerationHandsNothingOver) {
  Add();
  job_.spec.failed = true;
  latest_->HandOver(PartitionAt(0), PlanVersion(5));
  EXPECT_THAT(link(0).Types(), IsEmpty());
}

TEST_F(LatestPartitionsTest, TakeOverInAFailedGenerationAbortsThePartition) {
  Add();
  job_.spec.failed = true;
  latest_->TakeOver(PartitionAt(0), PlanVersion(5));
  job_.spec.failed = false;
  plan_ = PlanVersion(5);
  ASSERT_TRUE(ReportNothing(0).ok() && ReportNothing(1).ok());
  ReadAll();
  ASSERT_TRUE(Push(0, 1, 1).ok());
  EXPECT_THAT(link(0).Types(), ElementsAre(FrameType::kAborted));
}

TEST_F(LatestPartitionsTest, AbortedPartitionAnswersRepetitionsAndAddsNothing) {
  Add();
  ASSERT_TRUE(Push(0, 1, 5).ok());
  latest_->Abort(PartitionAt(0));
  ReadAll();
  ASSERT_TRUE(Push(0, 1, 5).ok());
  EXPECT_THAT(link(0).Types(), ElementsAre(FrameType::kStamp, FrameType::kResult));
  ReadAll();
  ASSERT_TRUE(Push(0, 2, 5).ok());
  ASSERT_THAT(link(0).Types(), ElementsAre(FrameType::kAborted));
  EXPECT_EQ(link(0).Last().round, Round(2));
}

TEST_F(LatestPartitionsTest, RollCallShowsTheHolderWhoseCopyIsMissing) {
  AwaitCopyOfNode0();
  ASSERT_EQ(RollCall().size(), 1u);
  const OpenRoundInfo open = RollCall()[0];
  EXPECT_EQ(open.job, kFixtureJob);
  EXPECT_EQ(open.tensor, kFixtureTensor);
  EXPECT_EQ(open.name, "t");
  EXPECT_EQ(open.partition, 0u);
  EXPECT_EQ(open.state, "lacking");
  EXPECT_EQ(open.round, Round(6));
  EXPECT_THAT(open.missing, ElementsAre(NodeId(0)));
  EXPECT_THAT(open.pushed, ElementsAre(NodeId(1)));
  EXPECT_THAT(RollCall(/*limit=*/0), IsEmpty());
  job_.spec.failed = true;
  EXPECT_THAT(RollCall(), IsEmpty());
  job_.spec.failed = false;
  latest_->Abort(PartitionAt(0));
  EXPECT_THAT(RollCall(), IsEmpty());
}

TEST_F(LatestPartitionsTest, RollCallLeavesLostNodesOut) {
  plan_ = PlanVersion(5);
  Add(5);
  job_.spec.lost.insert(NodeId(0));
  ASSERT_EQ(RollCall().size(), 1u);
  EXPECT_THAT(RollCall()[0].missing, ElementsAre(NodeId(1)));
}

TEST_F(LatestPartitionsTest, PartitionsAreCountedWhileTheyAreHere) {
  Add();
  Add();
  EXPECT_EQ(job_.partitions, 1u) << "it is held once";
  latest_->Add(std::make_shared<LatestPartition>(Spec(1, 5), memory_));
  EXPECT_EQ(job_.partitions, 2u);
  EXPECT_THAT(latest_->Ids(), ElementsAre(PartitionAt(0), PartitionAt(1)));
  latest_->Drop(PartitionAt(0));
  EXPECT_THAT(latest_->Ids(), ElementsAre(PartitionAt(1)));
  EXPECT_EQ(job_.partitions, 1u);
  latest_->DropAll();
  EXPECT_EQ(job_.partitions, 0u);
  EXPECT_THAT(RollCall(), IsEmpty());
}

TEST_F(LatestPartitionsTest, AnswerThatIsSentAfterTheJobHasEndedHasNoEffect) {
  Add();
  ASSERT_TRUE(Push(0, 1, 2).ok());
  latest_.reset();
  link(0).Finish();
}

}  // namespace
}  // namespace addend
