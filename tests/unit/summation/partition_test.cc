// A partition between its open round, its last result and its owners.
#include "lib/summation/partition.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "lib/memory/arena.h"

namespace addend {
namespace {

using Floats = std::vector<float>;

// A partition of floats whose two slots are its own memory.
struct Summing {
  explicit Summing(PartitionSpec spec) {
    const size_t slot = spec.payload_bytes();
    const auto arena = *Arena::Create(2 * slot);
    PartitionMemory memory;
    for (int i = 0; i < 2; ++i) {
      memory.accumulator[i] = memory.result[i] = arena->memory().data() + i * slot;
    }
    memory.keep_alive = arena;
    partition = std::make_unique<Partition>(std::move(spec), std::move(memory));
  }
  absl::Status Add(const Floats& values) {
    return Add(Payload(std::as_bytes(std::span<const float>(values))), /*empty=*/false);
  }
  absl::Status AddNothing() { return Add(Payload(), /*empty=*/true); }
  absl::Status Add(Payload payload, bool empty) {
    OpenRound& round = partition->open_round();
    if (absl::Status status = round.Take(std::move(payload), Encoding::kRaw, empty); !status.ok())
      return status;
    partition->Settle(&sealed);
    return absl::OkStatus();
  }
  Floats Result() const {
    const Bytes bytes = partition->LastResult();
    Floats values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  std::unique_ptr<Partition> partition;
  Round sealed;
};

TEST(PartitionTest, LastContributionSealsTheRound) {
  Summing sum({.op = ReduceOp::kSum, .elements = 2, .nodes = 2});
  ASSERT_TRUE(sum.Add({1, 2}).ok());
  EXPECT_EQ(sum.sealed, Round());
  ASSERT_TRUE(sum.Add({10, 20}).ok());
  EXPECT_EQ(sum.sealed, Round(1));
  EXPECT_EQ(sum.Result(), (Floats{11, 22}));
}

TEST(PartitionTest, ResultStaysWhileTheNextRoundIsSummed) {
  Summing sum({.op = ReduceOp::kSum, .elements = 1, .nodes = 2});
  ASSERT_TRUE(sum.Add({1}).ok());
  ASSERT_TRUE(sum.Add({2}).ok());
  ASSERT_TRUE(sum.Add({100}).ok());
  EXPECT_EQ(sum.Result()[0], 3);
}

TEST(PartitionTest, LossOfTheLastNodeSealsTheRoundWithTheAverageOfTheOthers) {
  Summing sum({.op = ReduceOp::kAverage, .elements = 2, .nodes = 3, .ranks = 2});
  ASSERT_TRUE(sum.Add({1, 2}).ok());
  ASSERT_TRUE(sum.Add({3, 6}).ok());
  EXPECT_EQ(sum.partition->Lose(NodeId(2)).sealed, Round(1));
  EXPECT_EQ(sum.Result(), (Floats{1, 2})) << "4 and 8 over 4 ranks";
  EXPECT_EQ(sum.partition->last_outcome().contributors, 2u);
  ASSERT_TRUE(sum.Add({4, 0}).ok());
  ASSERT_TRUE(sum.Add({4, 0}).ok());
  EXPECT_EQ(sum.sealed, Round(2)) << "and the next round does not wait for it";
  EXPECT_EQ(sum.Result(), (Floats{2, 0}));
}

TEST(PartitionTest, BroadcastWithoutItsRootCannotEnd) {
  Summing sum({.op = ReduceOp::kBroadcast, .elements = 1, .nodes = 3});
  ASSERT_TRUE(sum.AddNothing().ok());
  ASSERT_TRUE(sum.AddNothing().ok());
  EXPECT_FALSE(sum.partition->Lose(NodeId(2)).status.ok());
  EXPECT_TRUE(sum.partition->open_round().RootIsLost());
}

TEST(PartitionTest, AbortedRoundIsNotSealedByALoss) {
  Summing sum({.elements = 1, .nodes = 2});
  ASSERT_TRUE(sum.Add({1}).ok());
  sum.partition->Abort();
  EXPECT_EQ(sum.partition->Lose(NodeId(1)).sealed, Round());
}

TEST(PartitionTest, LastResultIsHeldUntilALaterRoundIsKnown) {
  Summing sum({.elements = 1, .nodes = 1});
  EXPECT_FALSE(sum.partition->Holds(Round(0)));
  ASSERT_TRUE(sum.Add({1}).ok());
  EXPECT_TRUE(sum.partition->Holds(Round(1)));
  EXPECT_FALSE(sum.partition->Holds(Round(2)));
  EXPECT_EQ(sum.partition->LastRound(), Round(1));
  sum.partition->TakeOver(PlanVersion(2), /*handed_over=*/false);
  EXPECT_TRUE(sum.partition->OnReport(NodeId(0), Round(3)));
  EXPECT_EQ(sum.partition->collector().round(), Round(4));
  EXPECT_FALSE(sum.partition->Holds(Round(3)));
}

TEST(PartitionTest, FirstContributionAfterAHandOverNamesTheRound) {
  Summing sum({.elements = 1, .nodes = 2, .version = PlanVersion(2), .handed_over = true});
  sum.partition->Meet(Round(8));
  EXPECT_EQ(sum.partition->collector().round(), Round(8));
  sum.partition->Meet(Round(9));
  EXPECT_EQ(sum.partition->collector().round(), Round(8)) << "only the first";
  ASSERT_TRUE(sum.Add({1}).ok());
  ASSERT_TRUE(sum.Add({2}).ok());
  EXPECT_EQ(sum.sealed, Round(8));
}

TEST(PartitionTest, PartitionClosesWhenTheOpenRoundIsSealedOrAborted) {
  Summing sum({.elements = 1, .nodes = 2});
  ASSERT_TRUE(sum.Add({1}).ok());
  ASSERT_TRUE(sum.partition->HandOver(PlanVersion(2)));
  EXPECT_FALSE(sum.partition->CloseIfDue(/*receiving=*/false)) << "a contribution is there";
  ASSERT_TRUE(sum.Add({2}).ok());
  EXPECT_FALSE(sum.partition->CloseIfDue(/*receiving=*/true));
  EXPECT_TRUE(sum.partition->CloseIfDue(/*receiving=*/false));
  Summing aborted({.elements = 1, .nodes = 2});
  ASSERT_TRUE(aborted.Add({1}).ok());
  ASSERT_TRUE(aborted.partition->HandOver(PlanVersion(2)));
  aborted.partition->Abort();
  EXPECT_TRUE(aborted.partition->CloseIfDue(/*receiving=*/false));
}

TEST(PartitionTest, SuppliedResultBecomesTheLastResultWithoutContributors) {
  Summing sum({.elements = 1, .nodes = 2, .version = PlanVersion(2)});
  EXPECT_TRUE(sum.partition->RoomForNewest().empty());
  EXPECT_FALSE(sum.partition->OnReport(NodeId(0), Round(4)));
  EXPECT_TRUE(sum.partition->OnReport(NodeId(1), Round(3)));
  EXPECT_EQ(sum.partition->RoomForNewest().size(), sizeof(float));
  EXPECT_FALSE(sum.partition->Holds(Round(4)));
  const Floats copy = {7};
  sum.partition->TakeNewest({std::as_bytes(std::span<const float>(copy))});
  EXPECT_TRUE(sum.partition->Holds(Round(4)));
  EXPECT_EQ(sum.Result(), copy);
  EXPECT_EQ(sum.partition->last_outcome().contributors, 0u);
  sum.partition->Supplied();
  EXPECT_TRUE(sum.partition->RoomForNewest().empty());
}

TEST(PartitionTest, RoundIsSummedAgainWhenItsLastHolderIsLost) {
  Summing sum({.elements = 1, .nodes = 2, .version = PlanVersion(2)});
  sum.partition->OnReport(NodeId(0), Round(4));
  sum.partition->OnReport(NodeId(1), Round(3));
  sum.partition->Lose(NodeId(0));
  sum.partition->GoBack();
  EXPECT_EQ(sum.partition->collector().round(), Round(4));
  EXPECT_FALSE(sum.partition->Holds(Round(3)));
  EXPECT_EQ(sum.partition->ownership().newest(), Round(3));
  ASSERT_TRUE(sum.Add({5}).ok());
  EXPECT_EQ(sum.sealed, Round(4));
}

// An owner that is made the owner again while it lacks round 40, of which node 1 alone has told.
// Node 0 has reported once more.
Summing RecoversAgain() {
  Summing sum({.op = ReduceOp::kSum, .elements = 1, .nodes = 2, .version = PlanVersion(3)});
  EXPECT_FALSE(sum.partition->OnReport(NodeId(0), Round(39)));
  EXPECT_TRUE(sum.partition->OnReport(NodeId(1), Round(40)));
  sum.partition->TakeOver(PlanVersion(4), /*handed_over=*/false);
  EXPECT_FALSE(sum.partition->OnReport(NodeId(0), Round(39)));
  return sum;
}

// The simulator has found it: the owner waited for contributions to the round after it.
TEST(PartitionTest, ARoundThatNobodyHoldsAnyMoreIsForgottenByTheNextRecovery) {
  Summing sum = RecoversAgain();
  EXPECT_TRUE(sum.partition->Lose(NodeId(1)).reports_complete);
  EXPECT_EQ(sum.partition->collector().round(), Round(40));
  ASSERT_TRUE(sum.Add({5}).ok());
  EXPECT_EQ(sum.sealed, Round(40));
}

TEST(PartitionTest, ARoundThatANodeStillHoldsIsNotSummedAgain) {
  Summing sum = RecoversAgain();
  EXPECT_TRUE(sum.partition->OnReport(NodeId(1), Round(40)));
  EXPECT_EQ(sum.partition->collector().round(), Round(41));
}

TEST(PartitionTest, SentResultsInTheMemoryOfTheAgentAreCounted) {
  std::atomic<uint64_t> reads = 0;
  PartitionMemory memory;
  memory.reads = &reads;
  const Partition partition({.elements = 1}, memory);
  partition.NoteSent();
  EXPECT_EQ(reads, 1u);
}

}  // namespace
}  // namespace addend
