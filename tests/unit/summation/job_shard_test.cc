// A job on a shard: its nodes, and the orders that reach all of its partitions.
#include "lib/summation/job_shard.h"

#include <gtest/gtest.h>

#include "lib/wire/crc32c.h"
#include "tests/unit/summation/job_fixture.h"

namespace addend {
namespace {

constexpr uint32_t kMany = 2 * JobShard::kAtOnce + 10;

class JobShardTest : public JobFixture {
 protected:
  JobShardTest() { Start(2); }
  void Start(uint32_t count) {
    spec_.num_nodes = count;
    nodes_.clear();
    job_ = std::make_unique<JobShard>(spec_, memory_, JobTotals(), &context_);
    for (uint32_t i = 0; i < count; ++i) {
      nodes_.push_back(MakeNode());
      EXPECT_TRUE(Admit(nodes_.back().get(), i).ok());
      nodes_.back()->port.Attach(/*encodes=*/true);
    }
  }
  absl::Status Admit(Node* node, uint32_t id) {
    return job_->Admit(&node->port,
                       {.job = kFixtureJob, .generation = Generation(1), .node = NodeId(id)},
                       /*encrypt=*/false);
  }
  absl::Status Push(uint32_t node, float value, uint32_t partition = 0) {
    return Deliver(job_.get(), nodes_[node].get(),
                   Header(FrameType::kContribution, node, partition, 1), {value});
  }
  // Adds partitions, to each of which the nodes from `first` on have contributed.
  void AddOpen(uint32_t count, uint32_t first) {
    for (uint32_t i = 0; i < count; ++i) {
      job_->Add(Summed(i));
      for (uint32_t node = first; node < nodes_.size(); ++node) EXPECT_TRUE(Push(node, 1, i).ok());
    }
  }
  void Fail() {
    spec_.failed = true;
    job_->Update(spec_);
  }
  void Lose(uint32_t node) {
    spec_.lost.insert(NodeId(node));
    job_->Update(spec_);
  }
  RecordingLink& link(uint32_t node) { return nodes_[node]->link; }

  std::vector<std::unique_ptr<Node>> nodes_;
  std::unique_ptr<JobShard> job_;
};

TEST_F(JobShardTest, FailureReachesThePartitionsAFewAtATime) {
  AddOpen(kMany, 1);
  Fail();
  EXPECT_EQ(link(0).Count(FrameType::kAborted), JobShard::kAtOnce);
  EndTurn();
  EXPECT_EQ(link(0).Count(FrameType::kAborted), 2 * JobShard::kAtOnce);
  EndTurn();
  EXPECT_EQ(link(0).Count(FrameType::kAborted), kMany);
  EXPECT_TRUE(deferred_.empty());
}

TEST_F(JobShardTest, FailureReachesOpenRoundsFirst) {
  for (uint32_t i = 0; i < kMany; ++i) job_->Add(Summed(i));
  std::set<PartitionId> open;
  for (uint32_t i = 0; i < JobShard::kAtOnce; ++i) {
    ASSERT_TRUE(Push(1, 1, 2 * i).ok());
    open.insert(PartitionAt(2 * i));
  }
  Fail();
  std::set<PartitionId> aborted;
  for (const auto& frame : link(1).Take(FrameType::kAborted)) {
    aborted.insert(frame.header.partition);
  }
  EXPECT_EQ(aborted, open);
}

TEST_F(JobShardTest, FailureOfASmallJobTakesASingleTurn) {
  AddOpen(3, 1);
  Fail();
  EXPECT_EQ(link(0).Count(FrameType::kAborted), 3u);
  EXPECT_TRUE(deferred_.empty());
}

TEST_F(JobShardTest, NoRoundIsSealedFromTheFailureOn) {
  AddOpen(kMany, 1);
  Fail();
  for (uint32_t i = 0; i < kMany; ++i) EXPECT_TRUE(Push(0, 1, i).ok());
  while (!deferred_.empty()) EndTurn();
  EXPECT_EQ(context_.stats.partitions_sealed, 0u);
  EXPECT_EQ(link(0).Count(FrameType::kResult), 0u);
}

TEST_F(JobShardTest, LostNodeIsDisconnectedAtOnceAndThePartitionsLearnOfItAFewAtATime) {
  Start(3);
  AddOpen(kMany, 1);
  Lose(0);
  EXPECT_TRUE(absl::IsAborted(link(0).closed.value_or(absl::OkStatus())));
  EXPECT_FALSE(nodes_[0]->port.is_member());
  EXPECT_EQ(context_.stats.partitions_sealed, JobShard::kAtOnce);
  while (!deferred_.empty()) EndTurn();
  EXPECT_EQ(context_.stats.partitions_sealed, kMany);
}

// The specification is of a scheduler that has forgotten the loss.
TEST_F(JobShardTest, PartitionThatIsAddedLaterDoesNotWaitForALostNode) {
  Start(3);
  Lose(0);
  job_->Add(Summed(0));
  EXPECT_TRUE(Push(1, 1).ok());
  EXPECT_TRUE(Push(2, 1).ok());
  EXPECT_EQ(context_.stats.partitions_sealed, 1u);
}

TEST_F(JobShardTest, FailureDuringTheLossOfANodeSealsNoFurtherRound) {
  Start(3);
  AddOpen(kMany, 1);
  Lose(0);
  Fail();
  while (!deferred_.empty()) EndTurn();
  EXPECT_EQ(context_.stats.partitions_sealed, JobShard::kAtOnce);
  std::set<PartitionId> aborted;
  for (const auto& frame : link(1).Take(FrameType::kAborted)) {
    aborted.insert(frame.header.partition);
  }
  EXPECT_EQ(aborted.size(), kMany);
}

TEST_F(JobShardTest, LossesDuringTheLossOfANodeReachAllPartitionsTogether) {
  Start(4);
  AddOpen(kMany, 3);  // contributions of node 3 alone
  for (const uint32_t node : {0, 1, 2}) Lose(node);
  EndTurn();
  EXPECT_EQ(link(3).Count(FrameType::kResult), 0u) << "only the loss of node 0 is on its way";
  EndTurn();
  // The end of the list of node 0. Then a single list for both other nodes, of which a turn reaches
  // half as many partitions.
  EXPECT_EQ(link(3).Count(FrameType::kResult), (JobShard::kAtOnce - kMany % JobShard::kAtOnce) / 2);
  for (int i = 0; i < 4; ++i) EndTurn();
  EXPECT_EQ(link(3).Count(FrameType::kResult), kMany) << "each round is complete without them";
}

TEST_F(JobShardTest, PartitionsThatAreDroppedMeanwhileAreSkipped) {
  AddOpen(kMany, 1);
  Fail();
  std::set<uint32_t> all;
  for (uint32_t i = 0; i < kMany; ++i) all.insert(i);
  job_->Drop(kFixtureTensor, all);
  while (!deferred_.empty()) EndTurn();
  EXPECT_EQ(link(0).Count(FrameType::kAborted), JobShard::kAtOnce);
}

TEST_F(JobShardTest, JobMayEndWhileAFailureIsOnItsWay) {
  AddOpen(kMany, 1);
  Fail();
  job_->End(absl::CancelledError("the job has ended"));
  job_.reset();
  EndTurn();
  EXPECT_TRUE(absl::IsCancelled(link(1).closed.value_or(absl::OkStatus())));
  EXPECT_FALSE(nodes_[1]->port.is_member());
}

TEST_F(JobShardTest, OnlyNodesOfTheGenerationAreAdmitted) {
  const auto node = MakeNode();
  EXPECT_TRUE(absl::IsPermissionDenied(Admit(node.get(), 2)));
  EXPECT_TRUE(absl::IsPermissionDenied(job_->Admit(
      &node->port, {.job = kFixtureJob, .generation = Generation(2), .node = NodeId(0)}, false)));
  Lose(1);
  EXPECT_TRUE(absl::IsPermissionDenied(Admit(node.get(), 1)));
  EXPECT_FALSE(node->port.is_member());
}

TEST_F(JobShardTest, NewLinkOfANodeReplacesItsFormerLink) {
  const auto again = MakeNode();
  ASSERT_TRUE(Admit(again.get(), 1).ok());
  EXPECT_TRUE(absl::IsAborted(link(1).closed.value_or(absl::OkStatus())));
  EXPECT_FALSE(nodes_[1]->port.is_member());
  job_->Add(Summed(0));
  again->port.Attach(/*encodes=*/true);
  ASSERT_TRUE(Push(0, 1).ok());
  ASSERT_TRUE(
      Deliver(job_.get(), again.get(), Header(FrameType::kContribution, 1, 0, 1), {2}).ok());
  EXPECT_EQ(again->link.Count(FrameType::kResult), 1u);
  EXPECT_EQ(link(1).Count(FrameType::kResult), 0u);
}

TEST_F(JobShardTest, FrameOfTheOtherKindOfPartitionIsRefused) {
  job_->Add(Summed(0));
  op_ = ReduceOp::kAccumulate;
  job_->Add(std::make_shared<LatestPartition>(Spec(1), memory_));
  EXPECT_TRUE(absl::IsInvalidArgument(Push(0, 1, 0)));
  op_ = ReduceOp::kSum;
  EXPECT_TRUE(absl::IsInvalidArgument(Push(0, 1, 1)));
  EXPECT_TRUE(absl::IsUnimplemented(
      job_->OnFrame(&nodes_[0]->port, Header(FrameType::kMoved, 0), Payload())));
}

TEST_F(JobShardTest, DropClosesTheLinkThatIsReceivingIntoThePartition) {
  job_->Add(Summed(0));
  FrameHeader header = Header(FrameType::kContribution, 0, 0, 1);
  header.payload_bytes = 4;
  ASSERT_TRUE(job_->Place(&nodes_[0]->port, header).ok());
  job_->Drop(kFixtureTensor, {0});
  EXPECT_TRUE(absl::IsUnavailable(link(0).closed.value_or(absl::OkStatus())));
  EXPECT_FALSE(link(1).closed.has_value());
}

TEST_F(JobShardTest, AuditComparesASecondSumWithTheResultOfEachNode) {
  for (const float result : {3.0f, 4.0f}) {
    for (const uint32_t node : {0u, 1u}) {
      ASSERT_TRUE(Deliver(job_.get(), nodes_[node].get(), Header(FrameType::kAudit, node, 0, 1),
                          {node == 0 ? 1.0f : 2.0f})
                      .ok());
      FrameHeader digest = Header(FrameType::kAuditDigest, node, 0, 1);
      digest.detail = Crc32c(std::as_bytes(std::span(&result, 1)));
      ASSERT_TRUE(job_->OnFrame(&nodes_[node]->port, digest, Payload()).ok());
    }
  }
  ASSERT_EQ(findings_.size(), 2u);
  EXPECT_EQ(findings_[0].result, Auditor::Result::kMatch);
  EXPECT_FALSE(job_->NoteAudit(findings_[0]));
  EXPECT_EQ(findings_[1].result, Auditor::Result::kMismatch);
  EXPECT_TRUE(job_->NoteAudit(findings_[1])) << "people have to know";
  EXPECT_FALSE(job_->NoteAudit({.result = Auditor::Result::kAbandoned, .job = {}, .text = {}}));
  EXPECT_EQ(job_->totals().audits_matched, 1u);
  EXPECT_EQ(job_->totals().audits_mismatched, 1u);
  EXPECT_EQ(job_->totals().audits_abandoned, 1u);
}

TEST_F(JobShardTest, EmptyContributionIsAudited) {
  for (const uint32_t node : {0u, 1u}) {
    FrameHeader audit = Header(FrameType::kAudit, node, 0, 1);
    audit.flags = kFlagEmpty;
    ASSERT_TRUE(job_->OnFrame(&nodes_[node]->port, audit, Payload()).ok());
    ASSERT_TRUE(
        job_->OnFrame(&nodes_[node]->port, Header(FrameType::kAuditDigest, node, 0, 1), Payload())
            .ok());
  }
  ASSERT_EQ(findings_.size(), 1u);
  EXPECT_EQ(findings_[0].result, Auditor::Result::kMatch) << "nothing was summed";
}

TEST_F(JobShardTest, AuditOfAPartOfAnElementIsAbandoned) {
  FrameHeader audit = Header(FrameType::kAudit, 0, 0, 1);
  audit.payload_bytes = 3;
  EXPECT_TRUE(job_->Place(&nodes_[0]->port, audit)->empty());
  ASSERT_TRUE(job_->OnFrame(&nodes_[0]->port, audit, Payload()).ok());
  ASSERT_EQ(findings_.size(), 1u);
  EXPECT_EQ(findings_[0].result, Auditor::Result::kAbandoned);
}

TEST_F(JobShardTest, PayloadsOfOtherFramesHaveNoRoom) {
  FrameHeader moved = Header(FrameType::kMoved, 0);
  moved.payload_bytes = 4;
  EXPECT_TRUE(absl::IsUnimplemented(job_->Place(&nodes_[0]->port, moved).status()));
}

TEST_F(JobShardTest, OrdersReachThePartitionsOfBothKinds) {
  job_->Add(Summed(0));
  op_ = ReduceOp::kAccumulate;
  job_->Add(std::make_shared<LatestPartition>(Spec(1), memory_));
  const auto waiting = [this] {
    std::vector<OpenRoundInfo> open;
    job_->RollCall(10, &open);
    return open.size();
  };
  EXPECT_EQ(waiting(), 0u);
  for (const uint32_t index : {0u, 1u}) job_->TakeOver(PartitionAt(index), PlanVersion(5), false);
  EXPECT_EQ(waiting(), 2u);
  std::map<TensorId, std::string> names;
  job_->AddNames(&names);
  EXPECT_EQ(names.at(kFixtureTensor), "t");
  job_->Drop(kFixtureTensor, {0, 1});
  EXPECT_EQ(waiting(), 0u);
}

TEST_F(JobShardTest, HandOverReachesThePartitionsOfBothKinds) {
  job_->Add(Summed(0));
  op_ = ReduceOp::kAccumulate;
  job_->Add(std::make_shared<LatestPartition>(Spec(1), memory_));
  job_->HandOver(kFixtureTensor, {0, 1}, PlanVersion(5));
  EXPECT_EQ(link(0).Count(FrameType::kMoved), 2u);
}

TEST_F(JobShardTest, LimitReachesAllNodes) {
  job_->LimitInFlight(77, SendLimits::kUnlimited);
  EXPECT_EQ(link(0).in_flight, 77u);
  EXPECT_EQ(link(1).in_flight, 77u);
  EXPECT_EQ(job_->in_flight_bytes(), 77u);
}

TEST_F(JobShardTest, AuditIsNotMadeWithLostNodes) {
  const auto audit = [&](uint32_t node) {
    return Deliver(job_.get(), nodes_[node].get(), Header(FrameType::kAudit, node, 0, 1), {1});
  };
  ASSERT_TRUE(audit(0).ok());
  context_.auditor.AbandonOlderThan(absl::InfiniteFuture());
  ASSERT_EQ(findings_.size(), 1u);
  Lose(1);
  ASSERT_TRUE(audit(0).ok());
  context_.auditor.AbandonOlderThan(absl::InfiniteFuture());
  EXPECT_EQ(findings_.size(), 1u);
}

TEST_F(JobShardTest, LinkThatClosesWhileItReceivesNoLongerHoldsUpAHandOver) {
  job_->Add(Summed(0));
  FrameHeader header = Header(FrameType::kContribution, 0, 0, 1);
  header.payload_bytes = 4;
  ASSERT_TRUE(job_->Place(&nodes_[0]->port, header).ok());
  job_->HandOver(kFixtureTensor, {0}, PlanVersion(5));
  EXPECT_EQ(link(1).Count(FrameType::kMoved), 0u);
  job_->OnLeft(&nodes_[0]->port, absl::UnavailableError("gone"));
  EXPECT_EQ(link(1).Count(FrameType::kMoved), 1u);
  EXPECT_EQ(link(0).Count(FrameType::kMoved), 0u) << "it is told when it is back";
}

TEST_F(JobShardTest, FormerLinkOfANodeTakesNothingFromItsNewLink) {
  const auto again = MakeNode();
  ASSERT_TRUE(Admit(again.get(), 1).ok());
  again->port.Attach(/*encodes=*/true);
  job_->OnLeft(&nodes_[1]->port, absl::UnavailableError("gone"));
  job_->LimitInFlight(77, SendLimits::kUnlimited);
  EXPECT_EQ(again->link.in_flight, 77u);
}

TEST_F(JobShardTest, ContributionInTheMemoryOfANodeThatLeavesIsForgotten) {
  traits_.by_reference = true;
  job_->Add(Summed(0));
  const float value = 2;
  int released = 0;
  FrameHeader header = Header(FrameType::kContribution, 1, 0, 1);
  header.payload_bytes = sizeof(value);
  ASSERT_TRUE(job_->OnFrame(&nodes_[1]->port, header,
                            Payload(std::as_bytes(std::span<const float>(&value, 1)),
                                    [&released] { ++released; }))
                  .ok());
  EXPECT_EQ(released, 0);
  job_->OnLeft(&nodes_[1]->port, absl::UnavailableError("gone"));
  EXPECT_EQ(released, 1);
  std::vector<OpenRoundInfo> open;
  job_->RollCall(1, &open);
  EXPECT_TRUE(open.empty()) << "no contribution is left";
}

TEST_F(JobShardTest, LinkThatClosesAbandonsItsAuditsByReference) {
  traits_.by_reference = true;
  const auto node = MakeNode();
  ASSERT_TRUE(Admit(node.get(), 1).ok());
  const float value = 1;
  FrameHeader header = Header(FrameType::kAudit, 1, 0, 1);
  header.payload_bytes = sizeof(value);
  ASSERT_TRUE(job_->OnFrame(&node->port, header,
                            Payload(std::as_bytes(std::span<const float>(&value, 1)), [] {}))
                  .ok());
  job_->OnLeft(&node->port, absl::UnavailableError("gone"));
  ASSERT_EQ(findings_.size(), 1u);
  EXPECT_EQ(findings_[0].result, Auditor::Result::kAbandoned);
}

}  // namespace
}  // namespace addend
