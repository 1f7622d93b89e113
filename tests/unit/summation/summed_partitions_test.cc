// The protocol of summed partitions: contributions, changes of the owner, losses and failures.
#include "lib/summation/summed_partitions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "lib/reduce/block_codec.h"
#include "tests/unit/summation/job_fixture.h"

namespace addend {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
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
      nodes_.back()->port.Attach(/*encodes=*/true);
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
  void Sync(uint32_t node, uint64_t held) {
    EXPECT_TRUE(summed_->OnSync(&nodes_[node]->port, Header(FrameType::kAck, node, 0, held)).ok());
  }
  // The node contributes nothing.
  absl::Status PushEmpty(uint32_t node, uint64_t round) {
    FrameHeader header = Header(FrameType::kContribution, node, 0, round);
    header.flags = kFlagEmpty;
    return summed_->OnContribution(&nodes_[node]->port, header, Payload());
  }
  // A payload of the node is on its way into partition 0.
  void BeginReceiving(uint32_t node, uint64_t round) {
    FrameHeader header = Header(FrameType::kContribution, node, 0, round);
    header.payload_bytes = 4;
    EXPECT_TRUE(summed_->Place(&nodes_[node]->port, header).ok());
  }
  void ReadAll() {
    for (const auto& node : nodes_) node->link.ReadAll();
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

TEST_F(SummedPartitionsTest, OrdersAndFramesAboutAPartitionThatIsNotHereHaveNoEffect) {
  summed_->TakeOver(PartitionAt(0), PlanVersion(5), false);
  summed_->HandOver(PartitionAt(0), PlanVersion(5));
  summed_->Abort(PartitionAt(0));
  summed_->Lose(PartitionAt(0), NodeId(1));
  summed_->Drop(PartitionAt(0));
  Report(0, 1);
  Sync(0, 1);
  EXPECT_TRUE(Supply(0, 1, 1).ok());
  EXPECT_THAT(link(0).Types(), IsEmpty());
  EXPECT_EQ(job_->partitions, 0u);
  EXPECT_EQ(summed_->SpecOf(PartitionAt(0)), nullptr);
}

TEST_F(SummedPartitionsTest, TakeOverOfAnOldVersionHasNoEffect) {
  plan_ = PlanVersion(5);
  summed_->Add(Summed(0, 5));
  Report(0, 0);
  Report(1, 0);
  BeginReceiving(0, 1);
  summed_->TakeOver(PartitionAt(0), PlanVersion(5), false);
  EXPECT_FALSE(link(0).closed.has_value());
  EXPECT_THAT(RollCall(), IsEmpty()) << "no report is missing";
}

TEST_F(SummedPartitionsTest, TakeOverInAFailedGenerationSumsNothing) {
  summed_->Add(Summed(0));
  job_->spec.failed = true;
  summed_->TakeOver(PartitionAt(0), PlanVersion(5), /*handed_over=*/true);
  plan_ = PlanVersion(5);
  ASSERT_TRUE(Push(0, 1, 1).ok());
  EXPECT_THAT(link(0).Types(), ElementsAre(FrameType::kAborted));
}

TEST_F(SummedPartitionsTest, ReportToAnotherVersionOfTheOwnerIsIgnored) {
  summed_->Add(Summed(0, 5));
  for (const uint64_t version : {4, 6}) {
    plan_ = PlanVersion(version);
    Report(0, 0);
    Report(1, 0);
  }
  EXPECT_THAT(link(0).Types(), IsEmpty());
  ASSERT_EQ(RollCall().size(), 1u);
  EXPECT_THAT(RollCall()[0].pushed, IsEmpty());
}

TEST_F(SummedPartitionsTest, RepeatedReportIsAnsweredWithTheRoundAndItsMissingResult) {
  plan_ = PlanVersion(5);
  summed_->Add(Summed(0, 5));
  Report(0, 4);
  Report(1, 5);
  ASSERT_TRUE(Supply(1, 5, 42).ok());
  ReadAll();
  Report(0, 4);
  EXPECT_THAT(link(0).Types(), ElementsAre(FrameType::kRecover, FrameType::kResult));
  Report(1, 5);
  EXPECT_THAT(link(1).Types(), ElementsAre(FrameType::kRecover));
}

TEST_F(SummedPartitionsTest, OwnerThatHoldsTheNewestResultItselfRequestsNothing) {
  summed_->Add(Summed(0));
  ASSERT_TRUE(Push(0, 1, 1).ok() && Push(1, 1, 2).ok());
  ReadAll();
  summed_->TakeOver(PartitionAt(0), PlanVersion(5), false);
  plan_ = PlanVersion(5);
  Report(0, 0);
  Report(1, 1);
  EXPECT_THAT(link(0).Types(), ElementsAre(FrameType::kRecover, FrameType::kResult));
  EXPECT_EQ(link(0).frames.back().values(), Floats{3});
  EXPECT_THAT(link(1).Types(), ElementsAre(FrameType::kRecover));
}

TEST_F(SummedPartitionsTest, SuppliedResultOfAnotherRoundIsIgnored) {
  plan_ = PlanVersion(5);
  summed_->Add(Summed(0, 5));
  Report(0, 4);
  Report(1, 5);
  ReadAll();
  ASSERT_TRUE(Supply(1, 4, 41).ok());
  EXPECT_THAT(link(0).Types(), IsEmpty());
  ASSERT_TRUE(Supply(1, 5, 42).ok());
  ReadAll();
  ASSERT_TRUE(Supply(1, 5, 43).ok());
  EXPECT_THAT(link(0).Types(), IsEmpty()) << "no node lacks it any more";
}

TEST_F(SummedPartitionsTest, HolderThatConnectsAgainIsAskedForTheResultAgain) {
  plan_ = PlanVersion(5);
  summed_->Add(Summed(0, 5));
  Report(0, 4);
  Report(1, 5);
  ReadAll();
  Sync(0, 4);
  EXPECT_THAT(link(0).Types(), IsEmpty()) << "it lacks the result itself";
  Sync(1, 5);
  ASSERT_THAT(link(1).Types(), ElementsAre(FrameType::kSendAgain));
  EXPECT_TRUE(link(1).Last().flags & kFlagResult);
}

TEST_F(SummedPartitionsTest, AnotherHolderIsAskedWhenTheFirstIsLost) {
  Start(3);
  plan_ = PlanVersion(5);
  summed_->Add(Summed(0, 5));
  Report(0, 4);
  Report(1, 5);
  Report(2, 5);
  ReadAll();
  Lose(1);
  EXPECT_THAT(link(0).Types(), IsEmpty());
  ASSERT_THAT(link(2).Types(), ElementsAre(FrameType::kSendAgain));
  EXPECT_TRUE(link(2).Last().flags & kFlagResult);
  EXPECT_EQ(link(2).Last().round, Round(5));
}

TEST_F(SummedPartitionsTest, LossOfTheOnlyNodeThatLacksAResultStopsReceivingIt) {
  plan_ = PlanVersion(5);
  summed_->Add(Summed(0, 5));
  Report(0, 4);
  Report(1, 5);
  FrameHeader header = Header(FrameType::kResult, 1, 0, 5);
  header.payload_bytes = 4;
  ASSERT_FALSE(summed_->Place(&nodes_[1]->port, header)->empty());
  Lose(0);
  EXPECT_TRUE(link(1).closed.has_value()) << "the room belongs to the next round now";
}

TEST_F(SummedPartitionsTest, LossOfTheLastNodeWithoutAReportEndsTheRecovery) {
  plan_ = PlanVersion(5);
  summed_->Add(Summed(0, 5));
  Report(0, 3);
  Lose(1);
  ASSERT_THAT(link(0).Types(), ElementsAre(FrameType::kRecover));
  EXPECT_EQ(link(0).Last().round, Round(3));
}

TEST_F(SummedPartitionsTest, KnownLossInAFailedGenerationHasNoEffect) {
  Start(3);
  summed_->Add(Summed(0));
  Lose(0);
  ASSERT_TRUE(Push(1, 1, 1).ok());
  job_->spec.failed = true;
  summed_->Lose(PartitionAt(0), NodeId(0));
  EXPECT_THAT(link(1).Types(), IsEmpty());
}

TEST_F(SummedPartitionsTest, LossOfABroadcastsRootAbortsTheRound) {
  op_ = ReduceOp::kBroadcast;
  Start(3);
  summed_->Add(Summed(0));
  ASSERT_TRUE(PushEmpty(0, 1).ok() && PushEmpty(1, 1).ok());
  Lose(2);
  ASSERT_THAT(link(0).Types(), ElementsAre(FrameType::kAborted));
  EXPECT_TRUE(link(0).Last().flags & kFlagEmpty) << "the root is lost, the generation goes on";
  EXPECT_EQ(link(0).Last().round, Round(1));
}

TEST_F(SummedPartitionsTest, ContributionForAFormerOwnershipIsDropped) {
  plan_ = PlanVersion(5);
  summed_->Add(Summed(0, 5));
  Report(0, 0);
  Report(1, 0);
  plan_ = PlanVersion(4);
  ASSERT_TRUE(Push(0, 1, 100).ok());
  plan_ = PlanVersion(6);
  ASSERT_TRUE(Push(0, 1, 1).ok() && Push(1, 1, 2).ok());
  EXPECT_EQ(link(0).frames.back().values(), Floats{3});
}

TEST_F(SummedPartitionsTest, ContributionThatIsRepeatedInItsRoundCountsOnce) {
  summed_->Add(Summed(0));
  ASSERT_TRUE(Push(0, 1, 1).ok() && Push(0, 1, 1).ok());
  ASSERT_TRUE(Push(1, 1, 2).ok());
  EXPECT_EQ(link(0).frames.back().values(), Floats{3});
  EXPECT_EQ(job_->totals.payload_bytes, 8u);
}

TEST_F(SummedPartitionsTest, EarlyContributionsAreKeptAndCounted) {
  Start(3);
  summed_->Add(Summed(0));
  ASSERT_TRUE(Push(2, 1, 4).ok() && Push(1, 1, 2).ok() && Push(0, 1, 1).ok());
  EXPECT_EQ(link(0).frames.back().values(), Floats{7});
  EXPECT_EQ(context_.stats.early_kept, 2u);
  EXPECT_EQ(context_.stats.early_dropped, 0u);
  EXPECT_EQ(context_.stats.payload_bytes_summed, 12u);
}

TEST_F(SummedPartitionsTest, ClosedPartitionAnswersByTheRound) {
  summed_->Add(Summed(0));
  ASSERT_TRUE(Push(0, 1, 1).ok() && Push(1, 1, 2).ok());
  summed_->HandOver(PartitionAt(0), PlanVersion(5));
  ReadAll();
  ASSERT_TRUE(Push(0, 1, 1).ok());
  EXPECT_THAT(link(0).Types(), ElementsAre(FrameType::kResult)) << "the node lacks this result";
  ASSERT_TRUE(Push(1, 2, 1).ok());
  EXPECT_THAT(link(1).Types(), ElementsAre(FrameType::kMoved));
}

TEST_F(SummedPartitionsTest, NodeThatConnectsAgainLearnsOfTheHandOver) {
  summed_->Add(Summed(0));
  ASSERT_TRUE(Push(0, 1, 1).ok() && Push(1, 1, 2).ok());
  summed_->HandOver(PartitionAt(0), PlanVersion(5));
  ReadAll();
  Sync(0, 0);
  EXPECT_THAT(link(0).Types(), ElementsAre(FrameType::kResult, FrameType::kMoved));
  Sync(1, 1);
  EXPECT_THAT(link(1).Types(), ElementsAre(FrameType::kMoved)) << "it has the result";
  ReadAll();
  plan_ = PlanVersion(5);
  Sync(0, 1);
  EXPECT_THAT(link(0).Types(), IsEmpty()) << "it follows the next owner already";
}

TEST_F(SummedPartitionsTest, OpenPartitionHasNothingToSayToANodeThatConnectsAgain) {
  summed_->Add(Summed(0));
  ASSERT_TRUE(Push(0, 1, 1).ok() && Push(1, 1, 2).ok());
  ReadAll();
  Sync(0, 0);
  EXPECT_THAT(link(0).Types(), IsEmpty());
}

TEST_F(SummedPartitionsTest, FailedGenerationHandsNothingOver) {
  summed_->Add(Summed(0));
  job_->spec.failed = true;
  summed_->HandOver(PartitionAt(0), PlanVersion(5));
  EXPECT_THAT(link(0).Types(), IsEmpty());
}

TEST_F(SummedPartitionsTest, PartitionThatWasHandedOverStaysWithTheNextOwnerInAFailure) {
  summed_->Add(Summed(0));
  summed_->HandOver(PartitionAt(0), PlanVersion(5));
  ReadAll();
  job_->spec.failed = true;
  summed_->Abort(PartitionAt(0));
  EXPECT_THAT(link(0).Types(), IsEmpty()) << "the next owner decides";
  ASSERT_TRUE(Push(0, 1, 1).ok());
  EXPECT_THAT(link(0).Types(), ElementsAre(FrameType::kMoved));
}

TEST_F(SummedPartitionsTest, RollCallShowsRecoveryAndTheHolderOfALackingResult) {
  plan_ = PlanVersion(5);
  summed_->Add(Summed(3, 5));
  summed_->Add(Summed(0, 5));
  Report(1, 5);
  ASSERT_EQ(RollCall().size(), 2u);
  const OpenRoundInfo recovering = RollCall()[0];
  EXPECT_EQ(recovering.job, kFixtureJob);
  EXPECT_EQ(recovering.tensor, kFixtureTensor);
  EXPECT_EQ(recovering.name, "t");
  EXPECT_EQ(recovering.state, "recovering");
  EXPECT_THAT(recovering.pushed, ElementsAre(NodeId(1)));
  EXPECT_THAT(recovering.missing, ElementsAre(NodeId(0)));
  Report(0, 4);
  const OpenRoundInfo lacking = RollCall()[0];
  EXPECT_EQ(lacking.state, "lacking");
  EXPECT_EQ(lacking.round, Round(6));
  EXPECT_THAT(lacking.pushed, ElementsAre(NodeId(0)));
  EXPECT_THAT(lacking.missing, ElementsAre(NodeId(1))) << "it holds the result";
}

TEST_F(SummedPartitionsTest, RollCallLeavesLostNodesOut) {
  Start(3);
  summed_->Add(Summed(0));
  ASSERT_TRUE(Push(1, 1, 1).ok());
  Lose(2);
  ASSERT_EQ(RollCall().size(), 1u);
  EXPECT_THAT(RollCall()[0].pushed, ElementsAre(NodeId(1)));
  EXPECT_THAT(RollCall()[0].missing, ElementsAre(NodeId(0)));
}

TEST_F(SummedPartitionsTest, RollCallEndsAtItsLimit) {
  for (uint32_t index : {0u, 1u, 2u}) {
    summed_->Add(Summed(index));
    ASSERT_TRUE(Push(1, 1, 1, index).ok());
  }
  std::vector<OpenRoundInfo> open(1);
  summed_->RollCall(2, &open);
  EXPECT_EQ(open.size(), 2u);
  summed_->RollCall(3, &open);
  EXPECT_EQ(open.size(), 3u);
}

TEST_F(SummedPartitionsTest, PartitionsThatWaitForNodesComeLast) {
  for (uint32_t index : {2u, 0u, 3u, 1u}) summed_->Add(Summed(index));
  ASSERT_TRUE(Push(0, 1, 1, 1).ok());
  EXPECT_THAT(summed_->Ids(),
              ElementsAre(PartitionAt(0), PartitionAt(2), PartitionAt(3), PartitionAt(1)));
}

TEST_F(SummedPartitionsTest, DropAllForgetsEveryPartition) {
  summed_->Add(Summed(0));
  summed_->Add(Summed(1));
  summed_->Add(Summed(1));
  EXPECT_EQ(job_->partitions, 2u) << "a partition is held once";
  ASSERT_TRUE(Push(1, 1, 1).ok());
  std::map<TensorId, std::string> names;
  summed_->AddNames(&names);
  EXPECT_THAT(names, ElementsAre(Pair(kFixtureTensor, "t")));
  summed_->DropAll();
  EXPECT_EQ(job_->partitions, 0u);
  EXPECT_THAT(summed_->Ids(), IsEmpty());
  EXPECT_THAT(RollCall(), IsEmpty());
}

TEST_F(SummedPartitionsTest, EarlyContributionsAreDroppedWhenTheJobKeepsTooMuch) {
  constexpr uint64_t kLimit = 1 << 20;
  memory_ = std::make_shared<JobMemory>(&budget_, kLimit);
  Start(2);
  for (uint32_t index : {0u, 1u}) {
    summed_->Add(Summed(index));
    ASSERT_TRUE(Push(1, 1, 2, index).ok());
  }
  summed_->TrimEarly();
  ASSERT_TRUE(Push(0, 1, 1, 0).ok());
  EXPECT_THAT(link(1).Types(), ElementsAre(FrameType::kResult)) << "there is room for it";
  ASSERT_TRUE(memory_->Reserve("w", kLimit).ok());
  summed_->TrimEarly();
  ASSERT_TRUE(Push(0, 1, 1, 1).ok());
  EXPECT_THAT(link(1).Types(), ElementsAre(FrameType::kResult, FrameType::kSendAgain));
}

// ---- encoded results ----

// Several land beside each other before the first is taken: in the scratch memory, and in buffers
// of their own.
TEST_F(SummedPartitionsTest, EncodedResultsThatANodeSuppliesMayArriveTogether) {
  constexpr size_t kElements = 30'000;
  std::vector<std::byte> encoded(EncodedBytesMax(DType::kFloat32, kElements));
  plan_ = PlanVersion(3);
  for (uint32_t index = 0; index < 3; ++index) {
    PartitionSpec spec = Spec(index, /*version=*/3);
    spec.elements = kElements;
    const std::shared_ptr<Arena> arena = *Arena::Create(2 * kElements * sizeof(float));
    PartitionMemory memory;
    for (int slot = 0; slot < 2; ++slot) {
      memory.accumulator[slot] = memory.result[slot] =
          arena->memory().data() + slot * kElements * sizeof(float);
    }
    memory.keep_alive = arena;
    summed_->Add(std::make_shared<Partition>(spec, memory));
    for (const uint64_t held : {5, 4}) {
      const uint32_t node = held == 5 ? 0 : 1;
      const FrameHeader report = Header(FrameType::kRecover, node, index, held);
      ASSERT_TRUE(summed_->OnReport(&nodes_[node]->port, report).ok());
    }
  }
  std::vector<MutableBytes> rooms;
  FrameHeader header = Header(FrameType::kResult, 0, 0, 5);
  header.encoding = Encoding::kBlocks;
  header.uncompressed_bytes = kElements * sizeof(float);
  for (uint32_t index = 0; index < 3; ++index) {
    // Another size for each: bfloat16 numbers, and further and further 24-bit numbers.
    Floats contents(kElements);
    for (size_t i = 0; i < kElements; ++i) {
      contents[i] = static_cast<float>(i % 100 + 129) + (i < 64 * index ? 0x1p-10f : 0);
    }
    const size_t size =
        EncodeBlocks(DType::kFloat32, contents.data(), kElements, encoded.size(), encoded);
    header.partition = PartitionAt(index);
    header.payload_bytes = static_cast<uint32_t>(size);
    rooms.push_back(*summed_->Place(&nodes_[0]->port, header));
    ASSERT_EQ(rooms.back().size(), size);
    std::memcpy(rooms.back().data(), encoded.data(), size);
  }
  link(1).ReadAll();
  for (uint32_t index = 0; index < 3; ++index) {
    header.partition = PartitionAt(index);
    header.payload_bytes = static_cast<uint32_t>(rooms[index].size());
    ASSERT_TRUE(summed_->OnSupplied(&nodes_[0]->port, header, Payload(Bytes(rooms[index]))).ok());
    const auto sent = link(1).Take(FrameType::kResult);
    ASSERT_EQ(sent.size(), index + 1) << "node 1 lacks the result";
    EXPECT_EQ(RawBytesOf(sent.back().header), kElements * sizeof(float));
  }
}

TEST_F(SummedPartitionsTest, AResultThatIsNoEncodingClosesTheLink) {
  constexpr uint32_t kBytes = 3;
  plan_ = PlanVersion(3);
  summed_->Add(Summed(0, /*version=*/3));
  Report(0, 5);
  Report(1, 4);
  FrameHeader header = Header(FrameType::kResult, 0, 0, 5);
  header.encoding = Encoding::kBlocks;
  header.payload_bytes = kBytes;
  header.uncompressed_bytes = sizeof(float);
  const MutableBytes room = *summed_->Place(&nodes_[0]->port, header);
  ASSERT_EQ(room.size(), kBytes);
  std::memset(room.data(), 0xff, kBytes);
  EXPECT_EQ(summed_->OnSupplied(&nodes_[0]->port, header, Payload(Bytes(room))).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace addend
