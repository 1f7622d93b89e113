// The protocol of summed partitions: contributions, changes of the owner, losses and failures.
#include "lib/summation/summed_partitions.h"

#include <gtest/gtest.h>

#include "tests/unit/summation/job_fixture.h"

namespace addend {
namespace {

using Floats = std::vector<float>;

class SummedPartitionsTest : public JobFixture {
 protected:
  SummedPartitionsTest() { Start(2); }
  // Begins with `count` connected nodes.
  void Start(uint32_t count) {
    spec_.num_nodes = count;
    summed_.reset();
    job_ = std::make_unique<JobState>();
    job_->server = &server_;
    job_->spec = spec_;
    job_->memory = memory_;
    nodes_.clear();
    for (uint32_t i = 0; i < count; ++i) {
      nodes_.push_back(MakeNode());
      nodes_.back()->port.Join(job_.get(), NodeId(i));
      nodes_.back()->port.Attach();
      job_->nodes.Set(NodeId(i), &nodes_.back()->port);
    }
    summed_ = std::make_unique<SummedPartitions>(job_.get(), &context_,
                                                 [](PartitionId) { return nullptr; });
  }
  // For Deliver().
  struct Receiver {
    SummedPartitions* summed;
    absl::StatusOr<MutableBytes> Place(NodePort* node, const FrameHeader& header) const {
      return summed->Place(node, header);
    }
    absl::Status OnFrame(NodePort* node, const FrameHeader& header, Payload payload) const {
      return header.type == FrameType::kResult
                 ? summed->OnSupplied(node, header, std::move(payload))
                 : summed->OnContribution(node, header, std::move(payload));
    }
  };
  absl::Status Push(uint32_t node, uint64_t round, float value, uint32_t partition = 0) {
    const Receiver receiver{summed_.get()};
    return Deliver(&receiver, nodes_[node].get(),
                   Header(FrameType::kContribution, node, partition, round), {value});
  }
  absl::Status Supply(uint32_t node, uint64_t round, float value) {
    const Receiver receiver{summed_.get()};
    return Deliver(&receiver, nodes_[node].get(), Header(FrameType::kResult, node, 0, round),
                   {value});
  }
  void Report(uint32_t node, uint64_t round) {
    EXPECT_TRUE(
        summed_->OnReport(&nodes_[node]->port, Header(FrameType::kRecover, node, 0, round)).ok());
  }
  // The scheduler says that the node is lost.
  void Lose(uint32_t node) {
    job_->spec.lost.insert(NodeId(node));
    job_->nodes.Erase(NodeId(node));
    summed_->Lose(PartitionAt(0), NodeId(node));
  }
  RecordingLink& link(uint32_t node) { return nodes_[node]->link; }
  std::vector<OpenRoundInfo> RollCall() {
    std::vector<OpenRoundInfo> open;
    summed_->RollCall(100, &open);
    return open;
  }

  std::unique_ptr<JobState> job_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::unique_ptr<SummedPartitions> summed_;
};

TEST_F(SummedPartitionsTest, LastContributionSendsTheResultToAllNodes) {
  summed_->Add(Summed(0));
  ASSERT_TRUE(Push(1, 1, 2).ok());
  EXPECT_TRUE(link(0).frames.empty() && link(1).frames.empty());
  ASSERT_TRUE(Push(0, 1, 1).ok());
  for (uint32_t node : {0u, 1u}) {
    ASSERT_EQ(link(node).Count(FrameType::kResult), 1u);
    EXPECT_EQ(link(node).frames[0].values(), Floats{3});
    EXPECT_EQ(link(node).Last().round, Round(1));
    EXPECT_EQ(link(node).Last().contributors, 2u);
  }
  EXPECT_EQ(context_.stats.partitions_sealed, 1u);
  EXPECT_EQ(job_->totals.payload_bytes, 8u);
}

TEST_F(SummedPartitionsTest, RepeatedContributionToASealedRoundGetsTheResultAgain) {
  summed_->Add(Summed(0));
  ASSERT_TRUE(Push(0, 1, 1).ok() && Push(1, 1, 2).ok());
  link(1).Finish();
  ASSERT_TRUE(Push(1, 1, 2).ok());
  EXPECT_EQ(link(1).Count(FrameType::kResult), 2u);
  EXPECT_EQ(link(0).Count(FrameType::kResult), 1u);
}

TEST_F(SummedPartitionsTest, EarlyContributionWithoutMemoryIsRequestedAtItsTurn) {
  MemoryBudget full(1);
  memory_ = std::make_shared<JobMemory>(&full, 0);
  Start(2);
  summed_->Add(Summed(0));
  ASSERT_TRUE(Push(1, 1, 2).ok());
  EXPECT_TRUE(link(1).frames.empty());
  ASSERT_TRUE(Push(0, 1, 1).ok());
  EXPECT_EQ(link(1).Last().type, FrameType::kSendAgain);
  EXPECT_EQ(context_.stats.early_dropped, 1u);
  ASSERT_TRUE(Push(1, 1, 2).ok());
  EXPECT_EQ(link(0).frames.back().values(), Floats{3});
  memory_.reset();
  summed_.reset();
  job_.reset();
}

TEST_F(SummedPartitionsTest, ContributionOfAFutureRoundIsRefused) {
  summed_->Add(Summed(0));
  EXPECT_TRUE(absl::IsInvalidArgument(Push(0, 2, 1)));
}

TEST_F(SummedPartitionsTest, ContributionToAnUnknownPartitionIsDropped) {
  EXPECT_TRUE(Push(0, 1, 1).ok());
  EXPECT_TRUE(link(0).frames.empty());
}

TEST_F(SummedPartitionsTest, PartitionIsHandedOverWhenItsOpenRoundIsSealed) {
  summed_->Add(Summed(0));
  ASSERT_TRUE(Push(0, 1, 1).ok());
  summed_->HandOver(PartitionAt(0), PlanVersion(5));
  EXPECT_EQ(link(0).Count(FrameType::kMoved), 0u);
  ASSERT_TRUE(Push(1, 1, 2).ok());
  ASSERT_EQ(link(0).Count(FrameType::kMoved), 1u);
  EXPECT_EQ(link(0).Last().plan_version, PlanVersion(5));
  EXPECT_EQ(link(0).Last().round, Round(1));
  link(0).Finish();
  ASSERT_TRUE(Push(0, 2, 1).ok());
  EXPECT_EQ(link(0).Count(FrameType::kMoved), 2u) << "not summed here";
}

TEST_F(SummedPartitionsTest, HandOverWaitsForAPayloadThatIsBeingReceived) {
  summed_->Add(Summed(0));
  FrameHeader header = Header(FrameType::kContribution, 0, 0, 1);
  header.payload_bytes = 4;
  ASSERT_TRUE(summed_->Place(&nodes_[0]->port, header).ok());
  summed_->HandOver(PartitionAt(0), PlanVersion(5));
  EXPECT_EQ(link(1).Count(FrameType::kMoved), 0u);
  job_->nodes.Erase(NodeId(0));
  summed_->OnReceiverLeft(nodes_[0]->port.landing().Abandon());
  EXPECT_EQ(link(1).Count(FrameType::kMoved), 1u);
}

TEST_F(SummedPartitionsTest, NewOwnerRequestsTheNewestResultAndSendsItToTheNodeThatLacksIt) {
  plan_ = PlanVersion(5);
  summed_->Add(Summed(0, 5));
  Report(0, 4);
  EXPECT_TRUE(link(0).frames.empty());
  Report(1, 5);
  EXPECT_EQ(link(0).Last().type, FrameType::kRecover);
  EXPECT_EQ(link(0).Last().round, Round(5));
  ASSERT_EQ(link(1).Last().type, FrameType::kSendAgain);
  EXPECT_TRUE(link(1).Last().flags & kFlagResult);
  ASSERT_TRUE(Supply(1, 5, 42).ok());
  EXPECT_EQ(link(0).frames.back().values(), Floats{42});
  EXPECT_EQ(link(1).Count(FrameType::kResult), 0u);
}

TEST_F(SummedPartitionsTest, ContributionDuringRecoveryIsDropped) {
  plan_ = PlanVersion(5);
  summed_->Add(Summed(0, 5));
  EXPECT_TRUE(Push(0, 6, 1).ok());
  Report(0, 5);
  Report(1, 5);
  ASSERT_TRUE(Push(0, 6, 1).ok() && Push(1, 6, 1).ok());
  EXPECT_EQ(link(0).frames.back().values(), Floats{2});
}

TEST_F(SummedPartitionsTest, RoundWhoseOnlyHolderIsLostIsSummedAgain) {
  Start(3);
  plan_ = PlanVersion(5);
  summed_->Add(Summed(0, 5));
  Report(0, 4);
  Report(1, 4);
  Report(2, 5);
  Lose(2);
  EXPECT_EQ(link(0).Last().type, FrameType::kSendAgain);
  EXPECT_EQ(link(0).Last().round, Round(5));
  ASSERT_TRUE(Push(0, 5, 1).ok() && Push(1, 5, 2).ok());
  EXPECT_EQ(link(0).frames.back().values(), Floats{3});
}

TEST_F(SummedPartitionsTest, LossOfTheLastMissingNodeSealsTheRound) {
  Start(3);
  summed_->Add(Summed(0));
  ASSERT_TRUE(Push(1, 1, 2).ok() && Push(2, 1, 4).ok());
  Lose(0);
  EXPECT_EQ(link(1).frames.back().values(), Floats{6});
  EXPECT_EQ(link(1).Last().contributors, 2u);
}

TEST_F(SummedPartitionsTest, LossThatIsKnownHasNoEffect) {
  Start(3);
  summed_->Add(Summed(0));
  Lose(0);
  ASSERT_TRUE(Push(1, 1, 2).ok() && Push(2, 1, 4).ok());
  const size_t sent = link(1).frames.size();
  summed_->Lose(PartitionAt(0), NodeId(0));
  EXPECT_EQ(link(1).frames.size(), sent);
}

TEST_F(SummedPartitionsTest, AbortTellsTheConnectedNodesAndLaterContributors) {
  summed_->Add(Summed(0));
  ASSERT_TRUE(Push(0, 1, 1).ok());
  job_->spec.failed = true;
  summed_->Abort(PartitionAt(0));
  EXPECT_EQ(link(0).Count(FrameType::kAborted), 1u);
  link(1).Finish();
  ASSERT_TRUE(Push(1, 1, 2).ok());
  EXPECT_EQ(link(1).Count(FrameType::kAborted), 2u);
  EXPECT_EQ(link(1).Last().flags & kFlagEmpty, 0) << "the generation has failed, not the root";
  EXPECT_TRUE(RollCall().empty());
}

TEST_F(SummedPartitionsTest, FailedGenerationSealsNoRoundEvenBeforeThePartitionIsAborted) {
  summed_->Add(Summed(0));
  ASSERT_TRUE(Push(0, 1, 1).ok());
  job_->spec.failed = true;
  ASSERT_TRUE(Push(1, 1, 2).ok());
  EXPECT_EQ(context_.stats.partitions_sealed, 0u);
  EXPECT_EQ(link(1).Last().type, FrameType::kAborted);
}

TEST_F(SummedPartitionsTest, LossInAFailedGenerationSealsNoRound) {
  summed_->Add(Summed(0));
  ASSERT_TRUE(Push(0, 1, 1).ok());
  job_->spec.failed = true;
  Lose(1);
  EXPECT_EQ(context_.stats.partitions_sealed, 0u);
  EXPECT_EQ(link(0).Last().type, FrameType::kAborted);
}

TEST_F(SummedPartitionsTest, RollCallNamesTheMissingNodesAndTheAgeOfTheRound) {
  summed_->Add(Summed(0));
  summed_->Add(Summed(1));
  EXPECT_TRUE(RollCall().empty());
  ASSERT_TRUE(Push(1, 1, 2).ok());
  now_ += absl::Seconds(12);
  ASSERT_EQ(RollCall().size(), 1u);
  const OpenRoundInfo open = RollCall()[0];
  EXPECT_EQ(open.partition, 0u);
  EXPECT_EQ(open.pushed, std::vector<NodeId>{NodeId(1)});
  EXPECT_EQ(open.missing, std::vector<NodeId>{NodeId(0)});
  EXPECT_EQ(open.open_s, 12.0);
  ASSERT_TRUE(Push(0, 1, 2).ok());
  EXPECT_TRUE(RollCall().empty());
}

TEST_F(SummedPartitionsTest, TakeOverClosesTheLinkThatIsReceivingIntoThePartition) {
  summed_->Add(Summed(0));
  FrameHeader header = Header(FrameType::kContribution, 0, 0, 1);
  header.payload_bytes = 4;
  ASSERT_TRUE(summed_->Place(&nodes_[0]->port, header).ok());
  summed_->TakeOver(PartitionAt(0), PlanVersion(5), false);
  EXPECT_TRUE(link(0).closed.has_value());
  EXPECT_FALSE(link(1).closed.has_value());
}

TEST_F(SummedPartitionsTest, DroppedPartitionIsDestroyedInALaterTurn) {
  std::weak_ptr<Partition> partition;
  {
    auto made = Summed(0);
    partition = made;
    summed_->Add(std::move(made));
  }
  EXPECT_EQ(job_->partitions, 1u);
  summed_->Drop(PartitionAt(0));
  EXPECT_EQ(job_->partitions, 0u);
  EXPECT_FALSE(partition.expired());
  EndTurn();
  EXPECT_TRUE(partition.expired());
}

}  // namespace
}  // namespace addend
