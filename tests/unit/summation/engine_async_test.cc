// Asynchronous mode: every update is answered with the latest value.
#include <gtest/gtest.h>

#include "tests/unit/summation/engine_fixture.h"

namespace addend {
namespace {

TEST_F(EngineTest, UpdateIsAnsweredWithTheLatestValueToItsNodeOnly) {
  op_ = ReduceOp::kAccumulate;
  Start(2);
  ASSERT_TRUE(Reserve(3, 2).ok());  // two partitions
  const auto nodes = JoinAsynchronously(2);
  nodes[1]->Push({1, 2}, 1);
  EXPECT_EQ(nodes[1]->WaitForResult(1), (std::vector<float>{1, 2}));
  EXPECT_EQ(nodes[1]->stamp.applied, (std::vector<uint64_t>{0, 1}));
  nodes[1]->Push({10, 20}, 2);
  EXPECT_EQ(nodes[1]->WaitForResult(2), (std::vector<float>{11, 22}));
  nodes[0]->Push({100, 200}, 1);
  EXPECT_EQ(nodes[0]->WaitForResult(1), (std::vector<float>{111, 222}));
  EXPECT_EQ(nodes[0]->stamp.updates, 3u);
  EXPECT_EQ(nodes[0]->stamp.applied, (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(nodes[0]->results.size(), 1u);
  nodes[1]->Push({5}, 1, /*partition=*/1);
  EXPECT_EQ(nodes[1]->WaitForResult(1, 1), std::vector<float>{5});
  nodes[0]->results.clear();
  nodes[0]->Push({100, 200}, 1);  // repeated after a reset, perhaps
  EXPECT_EQ(nodes[0]->WaitForResult(1), (std::vector<float>{111, 222})) << "not added again";
  EXPECT_EQ(engine_->stats().updates_applied, 4u);
}

TEST_F(EngineTest, LaterOwnerContinuesFromTheNewestCopyAndAddsNoUpdateTwice) {
  op_ = ReduceOp::kAccumulate;
  Start(3);
  ASSERT_TRUE(Reserve(1, 64, kTensor, /*version=*/5).ok());
  const auto nodes = JoinAsynchronously(3, /*version=*/5);
  nodes[2]->Push({1000.0F}, 4);  // before the reports: dropped, and sent again later
  // Node 1's round 3 is in node 0's copy, but its answer was lost; node 2's round 4 is in no copy.
  nodes[0]->Report(5, 7, {.updates = 13, .applied = {7, 3, 3}});
  nodes[1]->Report(5, 2, {.updates = 9, .applied = {5, 2, 2}});
  nodes[2]->Report(5, 3, {.updates = 12, .applied = {7, 2, 3}});
  ASSERT_TRUE(nodes[0]->WaitForRequest(7));
  nodes[0]->Supply({42.0F}, 7);
  EXPECT_EQ(nodes[0]->WaitForRecovered(), Round(7));
  EXPECT_EQ(nodes[1]->WaitForRecovered(), Round(3)) << "not to be sent again";
  EXPECT_EQ(nodes[1]->WaitForResult(3), std::vector<float>{42.0F});
  EXPECT_EQ(nodes[2]->WaitForRecovered(), Round(3));
  nodes[2]->Push({1000.0F}, 4);
  EXPECT_EQ(nodes[2]->WaitForResult(4), std::vector<float>{1042.0F});
  EXPECT_EQ(nodes[2]->stamp.updates, 14u);
  EXPECT_EQ(nodes[2]->stamp.applied, (std::vector<uint64_t>{7, 3, 4}));
  EXPECT_EQ(engine_->stats().updates_lost, 0u);
}

TEST_F(EngineTest, LossOfTheHolderFallsBackToTheNextCopyAndCountsTheLostUpdates) {
  op_ = ReduceOp::kAccumulate;
  Start(3);
  ASSERT_TRUE(Reserve(1, 64, kTensor, /*version=*/5).ok());
  const auto nodes = JoinAsynchronously(3, /*version=*/5);
  nodes[0]->Report(5, 7, {.updates = 13, .applied = {7, 3, 3}});
  nodes[1]->Report(5, 3, {.updates = 11, .applied = {5, 3, 3}});
  nodes[2]->Report(5, 3, {.updates = 10, .applied = {5, 2, 3}});
  ASSERT_TRUE(nodes[0]->WaitForRequest(7));
  job_.lost = {NodeId(0)};
  engine_->SetJob(job_);
  ASSERT_TRUE(nodes[1]->WaitForRequest(3));
  EXPECT_EQ(engine_->RollCall(kJob, 10).at(0).missing, std::vector<NodeId>{NodeId(1)});
  nodes[1]->Supply({7.0F}, 3);
  EXPECT_EQ(nodes[2]->WaitForRecovered(), Round(3));
  EXPECT_EQ(engine_->stats().updates_lost, 2u) << "of node 0, which had the answers";
}

TEST_F(EngineTest, NextHolderReportsAgainIfItsStampHadNoMemory) {
  op_ = ReduceOp::kAccumulate;
  Start(3, /*memory_limit=*/2 * sizeof(float) + LatestPartitionTableBytes(3));
  ASSERT_TRUE(Reserve(1, 64, kTensor, /*version=*/5).ok());
  const auto nodes = JoinAsynchronously(3, /*version=*/5);
  nodes[0]->Report(5, 7, {.updates = 13, .applied = {7, 3, 3}});
  nodes[1]->Report(5, 3, {.updates = 11, .applied = {5, 3, 3}});
  nodes[2]->Report(5, 3, {.updates = 10, .applied = {5, 2, 3}});
  ASSERT_TRUE(nodes[0]->WaitForRequest(7));
  job_.lost = {NodeId(0)};
  engine_->SetJob(job_);
  EXPECT_FALSE(nodes[1]->WaitForClose().ok());
  Node* const again = Join(1);
  again->op = ReduceOp::kAccumulate;
  again->version = 5;
  ASSERT_TRUE(again->WaitForHello());
  again->Report(5, 3, {.updates = 11, .applied = {5, 3, 3}});
  ASSERT_TRUE(again->WaitForRequest(3));
  again->Supply({7.0F}, 3);
  EXPECT_EQ(nodes[2]->WaitForRecovered(), Round(3));
  EXPECT_EQ(engine_->stats().updates_lost, 2u) << "of node 0, which had the answers";
}

TEST_F(EngineTest, OwnerHandsOverBetweenTwoUpdates) {
  op_ = ReduceOp::kAccumulate;
  Start(2);
  ASSERT_TRUE(Reserve(1, 64).ok());
  const auto nodes = JoinAsynchronously(2);
  nodes[1]->Push({3.0F}, 1);
  EXPECT_EQ(nodes[1]->WaitForResult(1), std::vector<float>{3.0F});
  engine_->HandOver(kJob, kTensor, {0}, PlanVersion(9));
  EXPECT_EQ(nodes[0]->WaitForMoved(), std::pair(PlanVersion(9), Round(0)));
  EXPECT_EQ(nodes[1]->WaitForMoved(), std::pair(PlanVersion(9), Round(1)));
  nodes[1]->moved.reset();
  nodes[1]->Push({4.0F}, 2);
  EXPECT_EQ(nodes[1]->WaitForMoved(), std::pair(PlanVersion(9), Round(1))) << "not added here";
  nodes[1]->results.clear();
  nodes[1]->Sync(0);
  EXPECT_EQ(nodes[1]->WaitForResult(1), std::vector<float>{3.0F}) << "a reset has lost it";
}

TEST_F(EngineTest, FailedGenerationAddsNoUpdate) {
  op_ = ReduceOp::kAccumulate;
  Start(2);
  ASSERT_TRUE(Reserve(1, 64).ok());
  const auto nodes = JoinAsynchronously(2);
  job_.failed = true;
  engine_->SetJob(job_);
  nodes[0]->Push({3.0F}, 1);
  EXPECT_EQ(nodes[0]->WaitForAborted(), Round(1));
}

TEST_F(EngineTest, UpdateForASumAndContributionForALatestValueAreRefused) {
  Start(2);
  ASSERT_TRUE(Reserve(1, 64).ok());
  const auto nodes = JoinAsynchronously(1);
  nodes[0]->Push({1.0F}, 1);
  EXPECT_TRUE(absl::IsInvalidArgument(nodes[0]->WaitForClose()));
  op_ = ReduceOp::kAccumulate;
  ASSERT_TRUE(Reserve(1, 64, TensorId(2)).ok());
  Node* const other = Join(1);
  ASSERT_TRUE(other->WaitForHello());
  other->Push({1.0F}, 1, 0, TensorId(2));
  EXPECT_TRUE(absl::IsInvalidArgument(other->WaitForClose()));
}

}  // namespace
}  // namespace addend
