// The value of an asynchronous partition: updates, copies, and restoration.
#include "lib/summation/latest_partition.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

namespace addend {
namespace {

using State = LatestPartition::State;

class LatestPartitionTest : public ::testing::Test {
 protected:
  static PartitionSpec SpecOf(PlanVersion version, std::set<NodeId> lost = {}) {
    return {.id = PartitionId(TensorId(1), 0),
            .name = "weights",
            .dtype = DType::kFloat32,
            .op = ReduceOp::kAccumulate,
            .elements = 2,
            .nodes = 3,
            .ranks = 1,
            .lost = std::move(lost),
            .aborted = false,
            .version = version,
            .handed_over = false};
  }
  static void Apply(LatestPartition* partition, uint32_t node, uint64_t round, float first,
                    float second) {
    const float update[] = {first, second};
    const Bytes bytes = std::as_bytes(std::span(update));
    ASSERT_TRUE(partition->Apply(NodeId(node), Round(round), {bytes}).ok());
  }
  static std::vector<float> ValuesIn(const std::shared_ptr<const Arena>& arena) {
    std::vector<float> values(2);
    std::memcpy(values.data(), arena->memory().data(), 8);
    return values;
  }
  static std::vector<float> Latest(LatestPartition* partition) {
    return ValuesIn(partition->Value().value());
  }
  static std::shared_ptr<Arena> Copy(float first, float second) {
    auto arena = Arena::Create(8).value();
    const float values[] = {first, second};
    std::memcpy(arena->memory().data(), values, 8);
    return arena;
  }
  static Stamp StampOf(uint64_t updates, std::vector<uint64_t> applied) {
    return {.updates = updates, .applied = std::move(applied)};
  }
  static bool Report(LatestPartition* partition, uint32_t node, uint64_t held, Stamp stamp) {
    return partition->OnReport(NodeId(node), Round(held), std::move(stamp)).value();
  }
};

TEST_F(LatestPartitionTest, UpdatesOfAnyNodeAreAddedWhenTheyArrive) {
  LatestPartition partition(SpecOf(PlanVersion()));
  EXPECT_EQ(partition.state(), State::kOpen);
  Apply(&partition, 2, 1, 1, 10);
  EXPECT_EQ(Latest(&partition), (std::vector<float>{1, 10}));
  Apply(&partition, 0, 1, 2, 20);
  Apply(&partition, 2, 2, 3, 30);
  EXPECT_EQ(Latest(&partition), (std::vector<float>{6, 60}));
  EXPECT_EQ(partition.Applied(NodeId(2)), Round(2));
  EXPECT_EQ(partition.Applied(NodeId(1)), Round(0));
  EXPECT_EQ(partition.stamp().updates, 3u);
}

TEST_F(LatestPartitionTest, FirstUpdateIsTheFirstValue) {
  LatestPartition partition(SpecOf(PlanVersion()));
  EXPECT_EQ(Latest(&partition), (std::vector<float>{0, 0})) << "before any";
  Apply(&partition, 0, 1, -0.0F, 1);
  EXPECT_TRUE(std::signbit(Latest(&partition)[0])) << "it is not added to a zero";
}

TEST_F(LatestPartitionTest, EmptyUpdateCountsAndAddsNothing) {
  LatestPartition partition(SpecOf(PlanVersion()));
  ASSERT_TRUE(partition.Apply(NodeId(1), Round(1), {}).ok());
  Apply(&partition, 0, 1, -0.0F, 5);
  ASSERT_TRUE(partition.Apply(NodeId(1), Round(2), {}).ok());
  EXPECT_TRUE(std::signbit(Latest(&partition)[0]));
  EXPECT_EQ(partition.stamp().applied, (std::vector<uint64_t>{1, 2, 0}));
}

TEST_F(LatestPartitionTest, LentValueDoesNotChange) {
  LatestPartition partition(SpecOf(PlanVersion()));
  Apply(&partition, 0, 1, 1, 1);
  auto first = partition.Value().value();
  Apply(&partition, 1, 1, 1, 1);
  auto second = partition.Value().value();
  Apply(&partition, 2, 1, 1, 1);
  EXPECT_EQ(ValuesIn(first), (std::vector<float>{1, 1}));
  EXPECT_EQ(ValuesIn(second), (std::vector<float>{2, 2}));
  EXPECT_EQ(Latest(&partition), (std::vector<float>{3, 3}));
  const std::byte* const memory = first->memory().data();
  first.reset();
  auto third = partition.Value().value();
  Apply(&partition, 0, 2, 1, 1);
  EXPECT_EQ(partition.Value().value()->memory().data(), memory) << "what came back is used again";
  EXPECT_EQ(ValuesIn(third), (std::vector<float>{3, 3}));
}

TEST_F(LatestPartitionTest, LaterOwnerContinuesFromTheMostRecentCopy) {
  LatestPartition partition(SpecOf(PlanVersion(4)));
  EXPECT_EQ(partition.state(), State::kRecovering);
  EXPECT_FALSE(Report(&partition, 0, 7, StampOf(11, {7, 3, 1})));
  EXPECT_FALSE(Report(&partition, 1, 3, StampOf(10, {6, 3, 1})));
  EXPECT_TRUE(Report(&partition, 2, 2, StampOf(12, {7, 3, 2})));
  EXPECT_EQ(partition.Holder(), NodeId(2));
  partition.BeginRestore();
  EXPECT_EQ(partition.state(), State::kRestoring);
  partition.EndRestore(Copy(12, 120));
  EXPECT_EQ(partition.LostUpdates(), 0u);
  EXPECT_EQ(partition.state(), State::kOpen);
  EXPECT_EQ(partition.Applied(NodeId(0)), Round(7));
  Apply(&partition, 1, 4, 1, 1);
  EXPECT_EQ(Latest(&partition), (std::vector<float>{13, 121}));
  EXPECT_EQ(partition.stamp().updates, 13u);
}

TEST_F(LatestPartitionTest, UpdatesThatOnlyALostNodeHeldAreCountedAsLost) {
  LatestPartition partition(SpecOf(PlanVersion(4)));
  EXPECT_FALSE(Report(&partition, 0, 7, StampOf(13, {7, 5, 1})));
  EXPECT_FALSE(Report(&partition, 1, 5, StampOf(12, {6, 5, 1})));
  EXPECT_TRUE(Report(&partition, 2, 1, StampOf(9, {5, 3, 1})));
  partition.BeginRestore();
  EXPECT_EQ(partition.Holder(), NodeId(0));
  EXPECT_TRUE(partition.Lose(NodeId(0))) << "it was asked for its copy";
  partition.BeginRestore();
  EXPECT_EQ(partition.Holder(), NodeId(1));
  partition.EndRestore(Copy(1, 1));
  EXPECT_EQ(partition.LostUpdates(), 1u) << "node 0 had the answer to its round 7";
}

TEST_F(LatestPartitionTest, ValueIsEmptyWithoutAnyCopy) {
  LatestPartition partition(SpecOf(PlanVersion(2), {NodeId(1)}));
  EXPECT_FALSE(Report(&partition, 0, 0, StampOf(0, {0, 0, 0})));
  EXPECT_TRUE(Report(&partition, 2, 0, StampOf(0, {0, 0, 0}))) << "node 1 is lost";
  partition.BeginRestore();
  EXPECT_EQ(partition.state(), State::kOpen);
  EXPECT_EQ(partition.LostUpdates(), 0u);
  Apply(&partition, 0, 1, 5, 5);
  EXPECT_EQ(Latest(&partition), (std::vector<float>{5, 5}));
}

TEST_F(LatestPartitionTest, LossOfAllHoldersLosesEveryUpdate) {
  LatestPartition partition(SpecOf(PlanVersion(2)));
  EXPECT_FALSE(Report(&partition, 0, 4, StampOf(4, {4, 0, 0})));
  EXPECT_FALSE(Report(&partition, 1, 0, StampOf(0, {0, 0, 0})));
  EXPECT_FALSE(partition.Lose(NodeId(0)));
  EXPECT_TRUE(Report(&partition, 2, 0, StampOf(0, {0, 0, 0})));
  partition.BeginRestore();
  EXPECT_EQ(partition.state(), State::kOpen);
  EXPECT_EQ(partition.LostUpdates(), 4u);
}

TEST_F(LatestPartitionTest, ReportOfALostNodeIsNotRequired) {
  LatestPartition partition(SpecOf(PlanVersion(2)));
  EXPECT_FALSE(Report(&partition, 0, 1, StampOf(1, {1, 0, 0})));
  EXPECT_FALSE(partition.Lose(NodeId(2)));
  EXPECT_FALSE(partition.HasReported(NodeId(1)));
  EXPECT_TRUE(partition.Lose(NodeId(1)));
}

TEST_F(LatestPartitionTest, HandOverHappensBetweenTwoUpdatesOfARestoredValue) {
  LatestPartition partition(SpecOf(PlanVersion(2)));
  EXPECT_TRUE(partition.HandOver(PlanVersion(5)));
  EXPECT_FALSE(partition.HandOver(PlanVersion(5))) << "old news";
  EXPECT_FALSE(partition.CloseIfDue()) << "it recovers";
  for (uint32_t node = 0; node < 3; ++node) Report(&partition, node, 0, StampOf(0, {0, 0, 0}));
  partition.BeginRestore();
  EXPECT_TRUE(partition.CloseIfDue());
  EXPECT_EQ(partition.state(), State::kClosed);
  EXPECT_EQ(partition.next_version(), PlanVersion(5));
  EXPECT_FALSE(partition.CloseIfDue());
  EXPECT_FALSE(partition.TakeOver(PlanVersion(2)));
  EXPECT_TRUE(partition.TakeOver(PlanVersion(6)));
  EXPECT_EQ(partition.state(), State::kRecovering);
}

TEST_F(LatestPartitionTest, UpdateWithoutMemoryForACopyWaitsForAFreeCopy) {
  MemoryBudget budget(1 << 20);
  const auto memory =
      std::make_shared<JobMemory>(&budget, /*limit=*/8);  // a copy above those reserved
  LatestPartition partition(SpecOf(PlanVersion()), memory);
  Apply(&partition, 0, 1, 1, 1);
  std::vector<std::shared_ptr<const Arena>> lent;
  for (uint64_t round = 2; round <= 3; ++round) {
    lent.push_back(partition.Value().value());
    Apply(&partition, 0, round, 1, 1);
  }
  lent.push_back(partition.Value().value());
  EXPECT_EQ(budget.used(), 8u);
  const float update[] = {1, 1};
  const auto apply = [&] {
    return partition.Apply(NodeId(1), Round(1), {std::as_bytes(std::span(update))});
  };
  EXPECT_TRUE(absl::IsResourceExhausted(apply()));
  EXPECT_EQ(partition.Applied(NodeId(1)), Round(0)) << "nothing has changed";
  EXPECT_TRUE(partition.IsLent());
  partition.Postpone(NodeId(1));
  partition.Postpone(NodeId(1));
  EXPECT_EQ(partition.TakePostponed(), std::nullopt) << "all copies are lent";
  lent.pop_back();
  EXPECT_EQ(partition.TakePostponed(), NodeId(1));
  EXPECT_EQ(partition.TakePostponed(), std::nullopt) << "once is enough";
  EXPECT_TRUE(apply().ok());
  EXPECT_EQ(Latest(&partition), (std::vector<float>{4, 4}));
  EXPECT_EQ(ValuesIn(lent.front()), (std::vector<float>{1, 1})) << "what was sent never changes";
}

TEST_F(LatestPartitionTest, CopyIsPaidForWhileItIsLent) {
  MemoryBudget budget(1 << 20);
  std::vector<std::shared_ptr<const Arena>> lent;
  {
    LatestPartition partition(SpecOf(PlanVersion()), std::make_shared<JobMemory>(&budget, 0));
    for (uint64_t round = 1; round <= 4; ++round) {
      Apply(&partition, 0, round, 1, 1);
      lent.push_back(partition.Value().value());
    }
    EXPECT_EQ(budget.used(), 2 * 8u);
  }
  EXPECT_EQ(budget.used(), 2 * 8u) << "the partition has gone, its copies have not been sent";
  lent.clear();
  EXPECT_EQ(budget.used(), 0u);
}

TEST_F(LatestPartitionTest, DropReturnsFurtherCopiesThatAreNotLent) {
  MemoryBudget budget(1 << 20);
  LatestPartition partition(SpecOf(PlanVersion()), std::make_shared<JobMemory>(&budget, 0));
  std::vector<std::shared_ptr<const Arena>> lent;
  for (uint64_t round = 1; round <= 4; ++round) {
    Apply(&partition, 0, round, 1, 1);
    lent.push_back(partition.Value().value());
  }
  EXPECT_EQ(budget.used(), 2 * 8u);
  partition.DropFurtherCopies();
  EXPECT_EQ(budget.used(), 2 * 8u) << "all are lent";
  lent.erase(lent.begin());  // a reserved copy
  partition.DropFurtherCopies();
  EXPECT_EQ(budget.used(), 8u) << "another takes the place of the reserved one";
  EXPECT_TRUE(partition.HasFurtherCopies());
  EXPECT_EQ(ValuesIn(lent.front()), (std::vector<float>{2, 2}));
  lent.clear();
  partition.DropFurtherCopies();
  EXPECT_EQ(budget.used(), 0u);
  EXPECT_FALSE(partition.HasFurtherCopies());
  EXPECT_EQ(Latest(&partition), (std::vector<float>{4, 4}));
  Apply(&partition, 1, 1, 1, 1);
  EXPECT_EQ(Latest(&partition), (std::vector<float>{5, 5}));
  EXPECT_EQ(budget.used(), 0u);
}

TEST_F(LatestPartitionTest, StampsTakeTheJobsMemoryUntilTheValueIsRestored) {
  MemoryBudget budget(1 << 20);
  LatestPartition partition(SpecOf(PlanVersion(2)), std::make_shared<JobMemory>(&budget, 0));
  Report(&partition, 0, 7, StampOf(13, {7, 5, 1}));
  EXPECT_EQ(budget.used(), 0u) << "the most recent stamp lies in the partition's own memory";
  Report(&partition, 1, 5, StampOf(14, {7, 5, 2}));
  const uint64_t one_stamp = budget.used();
  EXPECT_GE(one_stamp, StampBytes(3)) << "the former one is kept: the newer copy may be lost";
  Report(&partition, 1, 5, StampOf(14, {7, 5, 2}));
  EXPECT_EQ(budget.used(), one_stamp) << "a repeated report takes the place of the former";
  EXPECT_TRUE(Report(&partition, 2, 0, StampOf(0, {})));
  EXPECT_EQ(budget.used(), one_stamp) << "a node without a copy has no stamp";
  partition.BeginRestore();
  EXPECT_EQ(partition.Applied(NodeId(2)), Round(2));
  partition.EndRestore(Copy(1, 1));
  EXPECT_EQ(budget.used(), 0u);
  EXPECT_EQ(partition.LostUpdates(), 0u);
}

TEST_F(LatestPartitionTest, StampsReturnTheirMemoryWithThePartitionAndWhenReportsStartOver) {
  MemoryBudget budget(1 << 20);
  {
    LatestPartition partition(SpecOf(PlanVersion(2)), std::make_shared<JobMemory>(&budget, 0));
    Report(&partition, 0, 7, StampOf(13, {7, 5, 1}));
    Report(&partition, 1, 5, StampOf(12, {7, 4, 1}));
    EXPECT_GT(budget.used(), 0u);
    EXPECT_TRUE(partition.TakeOver(PlanVersion(3)));
    EXPECT_EQ(budget.used(), 0u);
    Report(&partition, 0, 7, StampOf(13, {7, 5, 1}));
    Report(&partition, 1, 5, StampOf(12, {7, 4, 1}));
  }
  EXPECT_EQ(budget.used(), 0u);
}

TEST_F(LatestPartitionTest, NodeWhoseStampHadNoMemoryReportsAgainIfItsCopyIsTheMostRecent) {
  MemoryBudget budget(/*limit=*/1);
  LatestPartition partition(SpecOf(PlanVersion(2)), std::make_shared<JobMemory>(&budget, 0));
  Report(&partition, 0, 7, StampOf(13, {7, 5, 1}));
  Report(&partition, 1, 5, StampOf(12, {6, 5, 1}));
  EXPECT_TRUE(Report(&partition, 2, 1, StampOf(9, {5, 3, 1})));
  partition.BeginRestore();
  EXPECT_EQ(partition.state(), State::kRestoring);
  EXPECT_EQ(partition.Holder(), NodeId(0));
  EXPECT_TRUE(partition.Lose(NodeId(0)));
  partition.BeginRestore();
  EXPECT_EQ(partition.state(), State::kRecovering);
  EXPECT_FALSE(partition.HasReported(NodeId(1)));
  EXPECT_TRUE(partition.HasReported(NodeId(2)));
  EXPECT_TRUE(Report(&partition, 1, 5, StampOf(12, {6, 5, 1})));
  partition.BeginRestore();
  EXPECT_EQ(partition.state(), State::kRestoring);
  partition.EndRestore(Copy(1, 1));
  EXPECT_EQ(partition.Applied(NodeId(1)), Round(5));
  EXPECT_EQ(partition.LostUpdates(), 1u) << "node 0 had the answer to its round 7";
}

TEST_F(LatestPartitionTest, StampOfAnotherNumberOfNodesIsRefused) {
  LatestPartition partition(SpecOf(PlanVersion(2)));
  EXPECT_TRUE(
      absl::IsInvalidArgument(partition.OnReport(NodeId(0), Round(1), StampOf(1, {1})).status()));
}

}  // namespace
}  // namespace addend
