#include "lib/summation/partition.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "lib/memory/arena.h"
#include "lib/reduce/half.h"

namespace addend {
namespace {

template <typename T>
Bytes AsBytes(const std::vector<T>& values) {
  return std::as_bytes(std::span<const T>(values));
}

// A partition of `elements` elements whose two slots are its own memory.
class Summing {
 public:
  Summing(DType dtype, ReduceOp op, uint64_t elements, uint32_t nodes, uint32_t ranks = 1) {
    const size_t slot = elements * AccumulatorSizeOf(dtype);
    const auto arena = *Arena::Create(2 * slot + 64);
    PartitionMemory memory;
    memory.accumulator[0] = memory.result[0] = arena->memory().data();
    memory.accumulator[1] = memory.result[1] = arena->memory().data() + slot;
    memory.keep_alive = arena;
    partition = std::make_unique<Partition>(Partition::Spec{.id = PartitionId(TensorId(1), 0),
                                                            .name = "t",
                                                            .dtype = dtype,
                                                            .op = op,
                                                            .elements = elements,
                                                            .nodes = nodes,
                                                            .ranks = ranks,
                                                            .lost = {},
                                                            .aborted = false,
                                                            .version = PlanVersion(),
                                                            .handed_over = false},
                                            std::move(memory));
  }
  template <typename T>
  absl::Status Add(const std::vector<T>& values) {
    return partition->Sum(AsBytes(values), false, nullptr, &sealed);
  }
  absl::Status AddNothing() { return partition->Sum({}, true, nullptr, &sealed); }
  template <typename T>
  std::vector<T> Result() const {
    const Bytes bytes = partition->LastResult();
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  std::unique_ptr<Partition> partition;
  Round sealed;
};

TEST(PartitionTest, TheLastNodeSealsTheRound) {
  Summing sum(DType::kFloat32, ReduceOp::kSum, 2, 2);
  ASSERT_TRUE(sum.Add<float>({1, 2}).ok());
  EXPECT_EQ(sum.sealed, Round());
  ASSERT_TRUE(sum.Add<float>({10, 20}).ok());
  EXPECT_EQ(sum.sealed, Round(1));
  EXPECT_EQ(sum.Result<float>(), (std::vector<float>{11, 22}));
}

TEST(PartitionTest, AnEmptyContributionAddsNothingAndMinusZeroSurvives) {
  Summing sum(DType::kFloat32, ReduceOp::kSum, 1, 3);
  ASSERT_TRUE(sum.AddNothing().ok());
  ASSERT_TRUE(sum.Add<float>({-0.0f}).ok());
  ASSERT_TRUE(sum.AddNothing().ok());
  EXPECT_TRUE(std::signbit(sum.Result<float>()[0]));
}

TEST(PartitionTest, OnlyEmptyContributionsGiveZeros) {
  Summing sum(DType::kInt64, ReduceOp::kAverage, 2, 2);
  ASSERT_TRUE(sum.AddNothing().ok());
  ASSERT_TRUE(sum.AddNothing().ok());
  EXPECT_EQ(sum.Result<int64_t>(), (std::vector<int64_t>{0, 0}));
}

TEST(PartitionTest, HalfTypesAccumulateWideAndRoundOnce) {
  // 2048 + 1 + 1 in fp16 steps would stay 2048; in fp32 it is 2050.
  Summing sum(DType::kFloat16, ReduceOp::kSum, 1, 3);
  for (const float value : {2048.0f, 1.0f, 1.0f}) {
    ASSERT_TRUE(sum.Add<uint16_t>({FloatToHalf(value)}).ok());
  }
  EXPECT_EQ(HalfToFloat(sum.Result<uint16_t>()[0]), 2050.0f);
}

TEST(PartitionTest, TheResultOfTheFormerRoundStaysWhileTheNextIsSummed) {
  Summing sum(DType::kFloat32, ReduceOp::kSum, 1, 2);
  ASSERT_TRUE(sum.Add<float>({1}).ok());
  ASSERT_TRUE(sum.Add<float>({2}).ok());
  ASSERT_TRUE(sum.Add<float>({100}).ok());
  EXPECT_EQ(sum.Result<float>()[0], 3);
}

TEST(PartitionTest, ABroadcastKeepsTheBitsOfItsRoot) {
  const float signalling = std::bit_cast<float>(0xffa12345u);
  Summing sum(DType::kFloat32, ReduceOp::kBroadcast, 1, 3);
  ASSERT_TRUE(sum.AddNothing().ok());
  ASSERT_TRUE(sum.Add<float>({signalling}).ok());
  ASSERT_TRUE(sum.AddNothing().ok());
  EXPECT_EQ(sum.Result<uint32_t>()[0], 0xffa12345u);
}

TEST(PartitionTest, ABroadcastNeedsExactlyOneRoot) {
  Summing two(DType::kFloat32, ReduceOp::kBroadcast, 1, 2);
  ASSERT_TRUE(two.Add<float>({1}).ok());
  EXPECT_EQ(two.Add<float>({2}).code(), absl::StatusCode::kFailedPrecondition);
  Summing none(DType::kFloat32, ReduceOp::kBroadcast, 1, 2);
  ASSERT_TRUE(none.AddNothing().ok());
  EXPECT_EQ(none.AddNothing().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(PartitionTest, OneNodeStillDividesAndCanonicalises) {
  Summing sum(DType::kFloat32, ReduceOp::kAverage, 2, 1, 4);
  ASSERT_TRUE(sum.Add<float>({8, std::bit_cast<float>(0xffc00001u)}).ok());
  EXPECT_EQ(sum.Result<float>()[0], 2);
  EXPECT_EQ(sum.Result<uint32_t>()[1], 0x7fc00000u);
}

TEST(PartitionTest, TheFirstContributionCanBeReceivedInThePlaceOfItsSum) {
  Summing sum(DType::kFloat32, ReduceOp::kSum, 2, 2);
  const MutableBytes room = sum.partition->DirectRoom();
  ASSERT_EQ(room.size(), 8u);
  const float values[] = {1, 2};
  std::memcpy(room.data(), values, 8);
  ASSERT_TRUE(sum.partition->Sum(room, false, nullptr, &sum.sealed).ok());
  EXPECT_TRUE(sum.partition->DirectRoom().empty()) << "the second has to be added";
  ASSERT_TRUE(sum.Add<float>({10, 20}).ok());
  EXPECT_EQ(sum.Result<float>(), (std::vector<float>{11, 22}));
  EXPECT_EQ(sum.partition->copied_bytes(), 0u);
}

TEST(PartitionTest, AFirstContributionByReferenceIsNotCopiedAndIsLetGoWithTheSecond) {
  Summing sum(DType::kFloat32, ReduceOp::kSum, 1, 3);
  const std::vector<float> lent_values = {1};
  bool released = false;
  Payload lent(AsBytes(lent_values), [&released] { released = true; });
  ASSERT_TRUE(sum.partition->Sum(lent.bytes(), false, &lent, &sum.sealed).ok());
  EXPECT_FALSE(released);
  ASSERT_TRUE(sum.Add<float>({10}).ok());
  EXPECT_TRUE(released);
  ASSERT_TRUE(sum.Add<float>({100}).ok());
  EXPECT_EQ(sum.Result<float>()[0], 111);
  EXPECT_EQ(sum.partition->copied_bytes(), 0u);
}

TEST(PartitionTest, AReferenceToALostNodeIsCopiedInTime) {
  Summing sum(DType::kFloat32, ReduceOp::kSum, 1, 2);
  std::vector<float> lent_values = {1};
  Payload lent(AsBytes(lent_values), [] {});
  ASSERT_TRUE(sum.partition->Sum(lent.bytes(), false, &lent, &sum.sealed).ok());
  sum.partition->ForgetReferences(NodeId(0));
  lent_values[0] = 50;  // the memory is not ours any more
  ASSERT_TRUE(sum.Add<float>({10}).ok());
  EXPECT_EQ(sum.Result<float>()[0], 11);
}

TEST(EarlyContributionTest, ABufferIsTakenFromTheBudgetAndGivenBack) {
  MemoryBudget budget(100);
  {
    const auto early = EarlyContribution::TakeBuffer(&budget, 60);
    ASSERT_NE(early, nullptr);
    EXPECT_EQ(budget.used(), 60u);
    EXPECT_EQ(EarlyContribution::TakeBuffer(&budget, 60), nullptr);
  }
  EXPECT_EQ(budget.used(), 0u);
  EXPECT_EQ(budget.peak(), 60u);
}

TEST(EarlyContributionTest, AccumulatorsTakeThePlaceOfEarlyContributions) {
  MemoryBudget budget(100);
  Summing sum(DType::kFloat32, ReduceOp::kSum, 10, 3);
  Collector& collector = sum.partition->collector();
  sum.partition->KeepEarly(NodeId(1), EarlyContribution::TakeBuffer(&budget, 40));
  ASSERT_TRUE(budget.TryReserve(80));
  EXPECT_FALSE(budget.TryReserve(21));
  EXPECT_TRUE(budget.over_limit());
  EXPECT_EQ(EarlyContribution::TakeBuffer(&budget, 1), nullptr);

  EXPECT_EQ(sum.partition->DropEarly(), 1u);
  EXPECT_FALSE(budget.over_limit());
  EXPECT_EQ(budget.free(), 20u);
  // Its node is asked again when its turn has come.
  ASSERT_TRUE(sum.Add(std::vector<float>(10, 1)).ok());
  EXPECT_EQ(collector.Advance(), Collector::Next::kAsk);
  EXPECT_EQ(collector.Classify(NodeId(1), collector.round()), Collector::Standing::kItsTurn);
}

TEST(PartitionTest, TheLossOfTheLastNodeSealsTheRoundAndTheAverageIsOverThoseInIt) {
  Summing sum(DType::kFloat32, ReduceOp::kAverage, 2, 3, /*ranks=*/2);
  ASSERT_TRUE(sum.Add<float>({1, 2}).ok());
  ASSERT_TRUE(sum.Add<float>({3, 6}).ok());
  EXPECT_EQ(sum.partition->Lose(NodeId(2)).sealed, Round(1));
  EXPECT_EQ(sum.Result<float>(), (std::vector<float>{1, 2})) << "4 and 8 over 4 ranks";
  EXPECT_EQ(sum.partition->contributors(), 2u);
  ASSERT_TRUE(sum.Add<float>({4, 0}).ok());
  ASSERT_TRUE(sum.Add<float>({4, 0}).ok());
  EXPECT_EQ(sum.sealed, Round(2)) << "and the next round does not wait for it";
  EXPECT_EQ(sum.Result<float>(), (std::vector<float>{2, 0}));
}

TEST(PartitionTest, WhatALostNodeHasContributedStaysInTheRound) {
  Summing sum(DType::kFloat16, ReduceOp::kSum, 1, 2);
  ASSERT_TRUE(sum.Add<uint16_t>({0x3C00}).ok());  // 1
  EXPECT_EQ(sum.partition->Lose(NodeId(0)).sealed, Round());
  ASSERT_TRUE(sum.Add<uint16_t>({0x4000}).ok());  // 2
  EXPECT_EQ(sum.sealed, Round(1));
  EXPECT_EQ(sum.Result<uint16_t>(), std::vector<uint16_t>{0x4200});  // 3
  EXPECT_EQ(sum.partition->contributors(), 2u);
}

TEST(PartitionTest, ABroadcastWithoutItsRootCannotEnd) {
  Summing sum(DType::kFloat32, ReduceOp::kBroadcast, 1, 3);
  ASSERT_TRUE(sum.AddNothing().ok());
  ASSERT_TRUE(sum.AddNothing().ok());
  EXPECT_FALSE(sum.partition->Lose(NodeId(2)).status.ok());
  EXPECT_TRUE(sum.partition->RootIsLost());
}

TEST(PartitionTest, WhatIsKeptOfALostNodeIsNotGivenUpForWantOfMemory) {
  MemoryBudget budget(1024);
  Summing sum(DType::kFloat32, ReduceOp::kSum, 1, 3);
  for (const uint32_t node : {1, 2}) {
    auto early = EarlyContribution::TakeBuffer(&budget, sizeof(float));
    ASSERT_NE(early, nullptr);
    sum.partition->KeepEarly(NodeId(node), std::move(early));
  }
  sum.partition->Lose(NodeId(1));
  EXPECT_EQ(sum.partition->DropEarly(), 1u) << "of node 2, which can be asked again";
  sum.partition->collector().Summed();
  EXPECT_EQ(sum.partition->collector().Advance(), Collector::Next::kKept);
}

}  // namespace
}  // namespace addend
