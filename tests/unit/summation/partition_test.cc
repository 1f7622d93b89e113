// A partition's rounds: the bits of the sums, losses, and the memory of contributions.
#include "lib/summation/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
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
    return Add(Payload(AsBytes(values)), /*empty=*/false);
  }
  absl::Status AddNothing() { return Add(Payload(), /*empty=*/true); }
  absl::Status Add(Payload payload, bool empty) {
    if (absl::Status status = partition->Take(std::move(payload), empty); !status.ok()) {
      return status;
    }
    partition->Settle(&sealed);
    return absl::OkStatus();
  }
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

TEST(PartitionTest, LastContributionSealsTheRound) {
  Summing sum(DType::kFloat32, ReduceOp::kSum, 2, 2);
  ASSERT_TRUE(sum.Add<float>({1, 2}).ok());
  EXPECT_EQ(sum.sealed, Round());
  ASSERT_TRUE(sum.Add<float>({10, 20}).ok());
  EXPECT_EQ(sum.sealed, Round(1));
  EXPECT_EQ(sum.Result<float>(), (std::vector<float>{11, 22}));
}

TEST(PartitionTest, EmptyContributionAddsNothingAndKeepsMinusZero) {
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

TEST(PartitionTest, ResultStaysWhileTheNextRoundIsSummed) {
  Summing sum(DType::kFloat32, ReduceOp::kSum, 1, 2);
  ASSERT_TRUE(sum.Add<float>({1}).ok());
  ASSERT_TRUE(sum.Add<float>({2}).ok());
  ASSERT_TRUE(sum.Add<float>({100}).ok());
  EXPECT_EQ(sum.Result<float>()[0], 3);
}

TEST(PartitionTest, BroadcastKeepsTheBitsOfItsRoot) {
  const float signalling = std::bit_cast<float>(0xffa12345u);
  Summing sum(DType::kFloat32, ReduceOp::kBroadcast, 1, 3);
  ASSERT_TRUE(sum.AddNothing().ok());
  ASSERT_TRUE(sum.Add<float>({signalling}).ok());
  ASSERT_TRUE(sum.AddNothing().ok());
  EXPECT_EQ(sum.Result<uint32_t>()[0], 0xffa12345u);
}

TEST(PartitionTest, BroadcastNeedsExactlyOneRoot) {
  Summing two(DType::kFloat32, ReduceOp::kBroadcast, 1, 2);
  ASSERT_TRUE(two.Add<float>({1}).ok());
  EXPECT_EQ(two.Add<float>({2}).code(), absl::StatusCode::kFailedPrecondition);
  Summing none(DType::kFloat32, ReduceOp::kBroadcast, 1, 2);
  ASSERT_TRUE(none.AddNothing().ok());
  EXPECT_EQ(none.AddNothing().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(PartitionTest, SingleNodeStillDividesAndCanonicalises) {
  Summing sum(DType::kFloat32, ReduceOp::kAverage, 2, 1, 4);
  ASSERT_TRUE(sum.Add<float>({8, std::bit_cast<float>(0xffc00001u)}).ok());
  EXPECT_EQ(sum.Result<float>()[0], 2);
  EXPECT_EQ(sum.Result<uint32_t>()[1], 0x7fc00000u);
}

TEST(PartitionTest, FirstContributionCanBeReceivedIntoTheAccumulator) {
  Summing sum(DType::kFloat32, ReduceOp::kSum, 2, 2);
  const MutableBytes room = sum.partition->DirectRoom();
  ASSERT_EQ(room.size(), 8u);
  const float values[] = {1, 2};
  std::memcpy(room.data(), values, 8);
  ASSERT_TRUE(sum.Add(Payload(room), false).ok());
  EXPECT_TRUE(sum.partition->DirectRoom().empty()) << "the second has to be added";
  ASSERT_TRUE(sum.Add<float>({10, 20}).ok());
  EXPECT_EQ(sum.Result<float>(), (std::vector<float>{11, 22}));
  EXPECT_EQ(sum.partition->copied_bytes(), 0u);
}

TEST(PartitionTest, FirstContributionByReferenceIsReleasedWithTheSecondWithoutACopy) {
  Summing sum(DType::kFloat32, ReduceOp::kSum, 1, 3);
  const std::vector<float> lent_values = {1};
  bool released = false;
  Payload lent(AsBytes(lent_values), [&released] { released = true; });
  ASSERT_TRUE(sum.Add(std::move(lent), false).ok());
  EXPECT_FALSE(released);
  ASSERT_TRUE(sum.Add<float>({10}).ok());
  EXPECT_TRUE(released);
  ASSERT_TRUE(sum.Add<float>({100}).ok());
  EXPECT_EQ(sum.Result<float>()[0], 111);
  EXPECT_EQ(sum.partition->copied_bytes(), 0u);
}

TEST(PartitionTest, ReferenceToTheMemoryOfALostNodeIsCopiedFirst) {
  Summing sum(DType::kFloat32, ReduceOp::kSum, 1, 2);
  std::vector<float> lent_values = {1};
  Payload lent(AsBytes(lent_values), [] {});
  ASSERT_TRUE(sum.Add(std::move(lent), false).ok());
  sum.partition->ForgetReferences(NodeId(0));
  lent_values[0] = 50;  // the memory is not ours any more
  ASSERT_TRUE(sum.Add<float>({10}).ok());
  EXPECT_EQ(sum.Result<float>()[0], 11);
}

// Contributions that arrive in any order are summed in the order of the nodes, however they are
// grouped.
TEST(PartitionTest, KeptContributionsAreSummedInNodeOrder) {
  MemoryBudget budget(1 << 20);
  const auto buffers = EarlyBuffers::Create(&budget);
  const auto job = std::make_shared<JobMemory>(&budget, 0);
  for (const DType dtype : {DType::kFloat32, DType::kFloat16}) {
    // As float32 2^24 + 1 is 2^24; as float16 8192 + 1 would be 8192, but it accumulates in
    // float32.
    const std::vector<std::vector<float>> values = {{1}, {1 << 24}, {1}, {-(1 << 24)}, {3}};
    const std::vector<std::vector<uint16_t>> halves = {
        {0x3C00}, {0x7000}, {0x3C00}, {0xF000}, {0x4200}};
    const auto bytes = [&](uint32_t node) {
      return dtype == DType::kFloat32 ? AsBytes(values[node]) : AsBytes(halves[node]);
    };
    std::vector<uint32_t> order = {0, 1, 2, 3, 4};
    do {
      Summing sum(dtype, ReduceOp::kSum, 1, 5);
      Collector& collector = sum.partition->collector();
      for (const uint32_t node : order) {
        if (collector.turn() != NodeId(node)) {
          std::unique_ptr<EarlyContribution> early;
          if (node % 2 == 0) {
            early = std::make_unique<EarlyContribution>(Payload(bytes(node), [] {}), false);
          } else {
            early = EarlyContribution::TakeBuffer(buffers.get(), bytes(node).size(), job);
            std::memcpy(early->room().data(), bytes(node).data(), bytes(node).size());
          }
          sum.partition->KeepEarly(NodeId(node), std::move(early));
          continue;
        }
        std::vector<std::byte> scratch(bytes(node).begin(), bytes(node).end());
        ASSERT_TRUE(sum.partition->Take(Payload(scratch), false).ok());
        while (collector.Advance() == Collector::Next::kKept) {
          ASSERT_TRUE(sum.partition->TakeKept().ok());
        }
        sum.partition->Settle(&sum.sealed);
        scratch.assign(scratch.size(), std::byte{0xff});  // the next payload comes there
      }
      ASSERT_EQ(sum.sealed, Round(1));
      if (dtype == DType::kFloat32) {
        ASSERT_EQ(sum.Result<float>()[0], 3) << "((((1 + 2^24) + 1) - 2^24) + 3";
      } else {
        ASSERT_EQ(sum.Result<uint16_t>()[0], 0x4500) << "5";
      }
    } while (std::next_permutation(order.begin(), order.end()));
  }
}

TEST(EarlyBuffersTest, BufferTakesWholePagesOfTheBudgetAndReturnsThem) {
  constexpr size_t kPage = 4096;
  MemoryBudget budget(3 * kPage);
  const auto buffers = EarlyBuffers::Create(&budget);
  const auto job = std::make_shared<JobMemory>(&budget, 0);
  {
    const auto buffer = buffers->Take(kPage + 1, job);
    EXPECT_EQ(buffer.memory().size(), kPage + 1);
    EXPECT_EQ(budget.used(), 2 * kPage);
    EXPECT_TRUE(buffers->Take(kPage + 1, job).memory().empty()) << "there is no room";
  }
  EXPECT_EQ(budget.used(), 2 * kPage) << "kept for the next one";
  const auto same = buffers->Take(2 * kPage, job);
  EXPECT_EQ(budget.used(), 2 * kPage);
  const auto other = buffers->Take(1, job);
  EXPECT_EQ(budget.used(), 3 * kPage);
}

TEST(EarlyBuffersTest, UnusedBuffersAreFreedForOtherSizesAndForAccumulators) {
  constexpr size_t kPage = 4096;
  MemoryBudget budget(3 * kPage);
  const auto buffers = EarlyBuffers::Create(&budget);
  const auto job = std::make_shared<JobMemory>(&budget, 0);
  buffers->Take(2 * kPage, job);
  {
    const auto larger = buffers->Take(3 * kPage, job);
    EXPECT_FALSE(larger.memory().empty());
    ASSERT_TRUE(budget.TryReserve(kPage));
  }
  EXPECT_EQ(budget.used(), kPage) << "over the limit nothing is kept";
  buffers->Take(kPage, job);
  buffers->DropUnused();
  EXPECT_EQ(budget.used(), kPage);
  EXPECT_EQ(budget.peak(), 3 * kPage);
}

TEST(EarlyBuffersTest, UnusedBuffersAreLimited) {
  MemoryBudget budget(0);
  const auto buffers = EarlyBuffers::Create(&budget);
  const auto job = std::make_shared<JobMemory>(&budget, 0);
  std::vector<EarlyBuffers::Buffer> taken;
  for (int i = 0; i < 5; ++i)
    taken.push_back(buffers->Take(EarlyBuffers::kUnusedBytesMax / 2, job));
  taken.clear();
  EXPECT_LE(budget.used(), EarlyBuffers::kUnusedBytesMax);
  EXPECT_GT(budget.used(), 0u);
}

TEST(EarlyContributionTest, AccumulatorsTakeThePlaceOfEarlyContributions) {
  MemoryBudget budget(5000);
  const auto buffers = EarlyBuffers::Create(&budget);
  const auto job = std::make_shared<JobMemory>(&budget, 0);
  Summing sum(DType::kFloat32, ReduceOp::kSum, 10, 3);
  Collector& collector = sum.partition->collector();
  sum.partition->KeepEarly(NodeId(1), EarlyContribution::TakeBuffer(buffers.get(), 40, job));
  ASSERT_TRUE(budget.TryReserve(4980));
  EXPECT_FALSE(budget.TryReserve(21));
  EXPECT_TRUE(budget.over_limit());
  EXPECT_EQ(EarlyContribution::TakeBuffer(buffers.get(), 1, job), nullptr);

  EXPECT_EQ(sum.partition->DropEarly(), 1u);
  EXPECT_FALSE(budget.over_limit());
  EXPECT_EQ(budget.free(), 20u);
  // Its node is asked again when its turn has come.
  ASSERT_TRUE(sum.Add(std::vector<float>(10, 1)).ok());
  EXPECT_EQ(collector.Advance(), Collector::Next::kAsk);
  EXPECT_EQ(collector.Classify(NodeId(1), collector.round()), Collector::Standing::kItsTurn);
}

TEST(PartitionTest, LossOfTheLastNodeSealsTheRoundWithTheAverageOfTheOthers) {
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

TEST(PartitionTest, ContributionOfALostNodeStaysInTheRound) {
  Summing sum(DType::kFloat16, ReduceOp::kSum, 1, 2);
  ASSERT_TRUE(sum.Add<uint16_t>({0x3C00}).ok());  // 1
  EXPECT_EQ(sum.partition->Lose(NodeId(0)).sealed, Round());
  ASSERT_TRUE(sum.Add<uint16_t>({0x4000}).ok());  // 2
  EXPECT_EQ(sum.sealed, Round(1));
  EXPECT_EQ(sum.Result<uint16_t>(), std::vector<uint16_t>{0x4200});  // 3
  EXPECT_EQ(sum.partition->contributors(), 2u);
}

TEST(PartitionTest, BroadcastWithoutItsRootCannotEnd) {
  Summing sum(DType::kFloat32, ReduceOp::kBroadcast, 1, 3);
  ASSERT_TRUE(sum.AddNothing().ok());
  ASSERT_TRUE(sum.AddNothing().ok());
  EXPECT_FALSE(sum.partition->Lose(NodeId(2)).status.ok());
  EXPECT_TRUE(sum.partition->RootIsLost());
}

TEST(PartitionTest, KeptContributionOfALostNodeIsNotDroppedForMemory) {
  MemoryBudget budget(1 << 20);
  const auto buffers = EarlyBuffers::Create(&budget);
  const auto job = std::make_shared<JobMemory>(&budget, 0);
  Summing sum(DType::kFloat32, ReduceOp::kSum, 1, 3);
  for (const uint32_t node : {1, 2}) {
    auto early = EarlyContribution::TakeBuffer(buffers.get(), sizeof(float), job);
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
