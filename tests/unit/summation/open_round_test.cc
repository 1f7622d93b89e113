// The contributions of a round: the bits of their sum or broadcast, their order, and their memory.
#include "lib/summation/open_round.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "lib/memory/arena.h"
#include "lib/reduce/block_codec.h"
#include "lib/reduce/half.h"

namespace addend {
namespace {

template <typename T>
Bytes AsBytes(const std::vector<T>& values) {
  return std::as_bytes(std::span<const T>(values));
}

// Rounds of `elements` elements, whose two slots are memory of their own.
struct RoundUnderTest {
  RoundUnderTest(DType dtype, ReduceOp op, uint64_t elements, uint32_t nodes, uint32_t ranks = 1)
      : spec{.id = PartitionId(TensorId(1), 0),
             .name = "t",
             .dtype = dtype,
             .op = op,
             .elements = elements,
             .nodes = nodes,
             .ranks = ranks} {
    const size_t slot = elements * AccumulatorSizeOf(dtype);
    const auto arena = *Arena::Create((1 + SumLevels(nodes)) * slot);
    for (int i = 0; i < 2; ++i) {
      memory.accumulator[i] = memory.result[i] = arena->memory().data() + i * slot;
    }
    memory.partial = arena->memory().data() + 2 * slot;
    memory.keep_alive = arena;
  }
  template <typename T>
  absl::Status Add(const std::vector<T>& values) {
    return Add(Payload(AsBytes(values)), /*empty=*/false);
  }
  absl::Status AddNothing() { return Add(Payload(), /*empty=*/true); }
  absl::Status Add(Payload payload, bool empty) {
    if (absl::Status status = round.Take(std::move(payload), Encoding::kRaw, empty); !status.ok())
      return status;
    Settle();
    return absl::OkStatus();
  }
  void Settle() {
    const Round settled = round.collector().round();
    if (const auto outcome = round.Settle(); outcome.has_value()) {
      sealed = settled;
      last = *outcome;
    }
  }
  // Of the sealed round.
  template <typename T>
  std::vector<T> Result() const {
    std::vector<T> values(spec.elements);
    std::memcpy(values.data(), memory.result[Parity(sealed)], spec.payload_bytes());
    return values;
  }
  PartitionSpec spec;
  PartitionMemory memory;
  OpenRound round{&spec, &memory};
  Round sealed;  // the last sealed round
  OpenRound::Outcome last;
};

TEST(OpenRoundTest, EmptyContributionAddsNothingAndKeepsMinusZero) {
  RoundUnderTest sum(DType::kFloat32, ReduceOp::kSum, 1, 3);
  ASSERT_TRUE(sum.AddNothing().ok());
  ASSERT_TRUE(sum.Add<float>({-0.0f}).ok());
  ASSERT_TRUE(sum.AddNothing().ok());
  EXPECT_TRUE(std::signbit(sum.Result<float>()[0]));
}

TEST(OpenRoundTest, OnlyEmptyContributionsGiveZeros) {
  RoundUnderTest sum(DType::kInt64, ReduceOp::kAverage, 2, 2);
  ASSERT_TRUE(sum.AddNothing().ok());
  ASSERT_TRUE(sum.AddNothing().ok());
  EXPECT_EQ(sum.Result<int64_t>(), (std::vector<int64_t>{0, 0}));
}

TEST(OpenRoundTest, HalfTypesAccumulateWideAndRoundOnce) {
  // 2048 + 1 + 1 in fp16 steps would stay 2048; in fp32 it is 2050.
  RoundUnderTest sum(DType::kFloat16, ReduceOp::kSum, 1, 3);
  for (const float value : {2048.0f, 1.0f, 1.0f}) {
    ASSERT_TRUE(sum.Add<uint16_t>({FloatToHalf(value)}).ok());
  }
  EXPECT_EQ(HalfToFloat(sum.Result<uint16_t>()[0]), 2050.0f);
}

TEST(OpenRoundTest, BroadcastKeepsTheBitsOfItsRoot) {
  const float signalling = std::bit_cast<float>(0xffa12345u);
  RoundUnderTest sum(DType::kFloat32, ReduceOp::kBroadcast, 1, 3);
  ASSERT_TRUE(sum.AddNothing().ok());
  ASSERT_TRUE(sum.Add<float>({signalling}).ok());
  ASSERT_TRUE(sum.AddNothing().ok());
  EXPECT_EQ(sum.Result<uint32_t>()[0], 0xffa12345u);
}

TEST(OpenRoundTest, BroadcastNeedsExactlyOneRoot) {
  RoundUnderTest two(DType::kFloat32, ReduceOp::kBroadcast, 1, 2);
  ASSERT_TRUE(two.Add<float>({1}).ok());
  EXPECT_EQ(two.Add<float>({2}).code(), absl::StatusCode::kFailedPrecondition);
  RoundUnderTest none(DType::kFloat32, ReduceOp::kBroadcast, 1, 2);
  ASSERT_TRUE(none.AddNothing().ok());
  EXPECT_EQ(none.AddNothing().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(OpenRoundTest, SingleNodeStillDividesAndCanonicalises) {
  RoundUnderTest sum(DType::kFloat32, ReduceOp::kAverage, 2, 1, 4);
  ASSERT_TRUE(sum.Add<float>({8, std::bit_cast<float>(0xffc00001u)}).ok());
  EXPECT_EQ(sum.Result<float>()[0], 2);
  EXPECT_EQ(sum.Result<uint32_t>()[1], 0x7fc00000u);
}

TEST(OpenRoundTest, FirstContributionCanBeReceivedIntoTheAccumulator) {
  RoundUnderTest sum(DType::kFloat32, ReduceOp::kSum, 2, 2);
  const MutableBytes room = sum.round.DirectRoomFor(Encoding::kRaw);
  ASSERT_EQ(room.size(), 8u);
  const float values[] = {1, 2};
  std::memcpy(room.data(), values, 8);
  ASSERT_TRUE(sum.Add(Payload(room), false).ok());
  EXPECT_TRUE(sum.round.DirectRoomFor(Encoding::kRaw).empty()) << "the second has to be added";
  ASSERT_TRUE(sum.Add<float>({10, 20}).ok());
  EXPECT_EQ(sum.Result<float>(), (std::vector<float>{11, 22}));
  EXPECT_EQ(sum.round.copied_bytes(), 0u);
}

TEST(OpenRoundTest, FirstContributionByReferenceIsReleasedWithTheSecondWithoutACopy) {
  RoundUnderTest sum(DType::kFloat32, ReduceOp::kSum, 1, 3);
  const std::vector<float> lent_values = {1};
  bool released = false;
  Payload lent(AsBytes(lent_values), [&released] { released = true; });
  ASSERT_TRUE(sum.Add(std::move(lent), false).ok());
  EXPECT_FALSE(released);
  ASSERT_TRUE(sum.Add<float>({10}).ok());
  EXPECT_TRUE(released);
  ASSERT_TRUE(sum.Add<float>({100}).ok());
  EXPECT_EQ(sum.Result<float>()[0], 111);
  EXPECT_EQ(sum.round.copied_bytes(), 0u);
}

TEST(OpenRoundTest, ReferenceToTheMemoryOfALostNodeIsCopiedFirst) {
  RoundUnderTest sum(DType::kFloat32, ReduceOp::kSum, 1, 2);
  std::vector<float> lent_values = {1};
  Payload lent(AsBytes(lent_values), [] {});
  ASSERT_TRUE(sum.Add(std::move(lent), false).ok());
  sum.round.ForgetReferences(NodeId(0));
  lent_values[0] = 50;  // the memory is not ours any more
  ASSERT_TRUE(sum.Add<float>({10}).ok());
  EXPECT_EQ(sum.Result<float>()[0], 11);
}

// Contributions that arrive in any order are summed in the order of the nodes, however they are
// grouped.
TEST(OpenRoundTest, KeptContributionsAreSummedInNodeOrder) {
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
      RoundUnderTest sum(dtype, ReduceOp::kSum, 1, 5);
      const Collector& collector = sum.round.collector();
      for (const uint32_t node : order) {
        if (collector.turn() != NodeId(node)) {
          std::unique_ptr<EarlyContribution> early;
          if (node % 2 == 0) {
            early = std::make_unique<EarlyContribution>(Payload(bytes(node), [] {}), false);
          } else {
            early = EarlyContribution::TakeBuffer(buffers.get(), bytes(node).size(), job);
            std::memcpy(early->room().data(), bytes(node).data(), bytes(node).size());
          }
          sum.round.Keep(NodeId(node), std::move(early));
          continue;
        }
        std::vector<std::byte> scratch(bytes(node).begin(), bytes(node).end());
        ASSERT_TRUE(sum.round.Take(Payload(scratch), Encoding::kRaw, false).ok());
        while (sum.round.Advance() == Collector::Next::kKept) {
          ASSERT_TRUE(sum.round.TakeKept().ok());
        }
        sum.Settle();
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

TEST(OpenRoundTest, AccumulatorsTakeThePlaceOfEarlyContributions) {
  MemoryBudget budget(5000);
  const auto buffers = EarlyBuffers::Create(&budget);
  const auto job = std::make_shared<JobMemory>(&budget, 0);
  RoundUnderTest sum(DType::kFloat32, ReduceOp::kSum, 10, 3);
  const Collector& collector = sum.round.collector();
  sum.round.Keep(NodeId(1), EarlyContribution::TakeBuffer(buffers.get(), 40, job));
  ASSERT_TRUE(budget.TryReserve(4980));
  EXPECT_FALSE(budget.TryReserve(21));
  EXPECT_TRUE(budget.over_limit());
  EXPECT_EQ(EarlyContribution::TakeBuffer(buffers.get(), 1, job), nullptr);

  EXPECT_EQ(sum.round.DropKept(), 1u);
  EXPECT_FALSE(budget.over_limit());
  EXPECT_EQ(budget.free(), 20u);
  // Its node is asked again when its turn has come.
  ASSERT_TRUE(sum.Add(std::vector<float>(10, 1)).ok());
  EXPECT_EQ(sum.round.Advance(), Collector::Next::kAsk);
  EXPECT_EQ(collector.Classify(NodeId(1), collector.round()), Collector::Standing::kItsTurn);
}

TEST(OpenRoundTest, ContributionOfALostNodeStaysInTheRound) {
  RoundUnderTest sum(DType::kFloat16, ReduceOp::kSum, 1, 2);
  ASSERT_TRUE(sum.Add<uint16_t>({0x3C00}).ok());  // 1
  EXPECT_FALSE(sum.round.Lose(NodeId(0)));
  ASSERT_TRUE(sum.Add<uint16_t>({0x4000}).ok());  // 2
  EXPECT_EQ(sum.sealed, Round(1));
  EXPECT_EQ(sum.Result<uint16_t>(), std::vector<uint16_t>{0x4200});  // 3
  EXPECT_EQ(sum.last.contributors, 2u);
}

TEST(OpenRoundTest, KeptContributionOfALostNodeIsNotDroppedForMemory) {
  MemoryBudget budget(1 << 20);
  const auto buffers = EarlyBuffers::Create(&budget);
  const auto job = std::make_shared<JobMemory>(&budget, 0);
  RoundUnderTest sum(DType::kFloat32, ReduceOp::kSum, 1, 3);
  for (const uint32_t node : {1, 2}) {
    auto early = EarlyContribution::TakeBuffer(buffers.get(), sizeof(float), job);
    ASSERT_NE(early, nullptr);
    sum.round.Keep(NodeId(node), std::move(early));
  }
  sum.round.Lose(NodeId(1));
  EXPECT_EQ(sum.round.DropKept(), 1u) << "of node 2, which can be asked again";
  ASSERT_TRUE(sum.Add<float>({1}).ok());
  EXPECT_EQ(sum.round.Advance(), Collector::Next::kKept);
}

TEST(OpenRoundTest, SettleOpensTheNextRoundInTheOtherSlot) {
  RoundUnderTest sum(DType::kFloat32, ReduceOp::kSum, 1, 2);
  ASSERT_TRUE(sum.Add<float>({1}).ok());
  EXPECT_FALSE(sum.round.Settle().has_value()) << "node 1 is missing";
  ASSERT_TRUE(sum.Add<float>({2}).ok());
  EXPECT_EQ(sum.sealed, Round(1));
  EXPECT_EQ(sum.round.collector().round(), Round(2));
  ASSERT_TRUE(sum.Add<float>({100}).ok());
  EXPECT_EQ(sum.Result<float>()[0], 3);
}

TEST(OpenRoundTest, OutcomeSaysWhetherASumIsFinite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  RoundUnderTest sum(DType::kFloat32, ReduceOp::kSum, 1, 1);
  ASSERT_TRUE(sum.Add<float>({kInfinity}).ok());
  EXPECT_TRUE(sum.last.nonfinite);
  ASSERT_TRUE(sum.Add<float>({1}).ok());
  EXPECT_FALSE(sum.last.nonfinite);
  RoundUnderTest broadcast(DType::kFloat32, ReduceOp::kBroadcast, 1, 1);
  ASSERT_TRUE(broadcast.Add<float>({kInfinity}).ok());
  EXPECT_FALSE(broadcast.last.nonfinite) << "not checked";
}

TEST(OpenRoundTest, LossOfTheMissingNodesCompletesTheRound) {
  RoundUnderTest sum(DType::kFloat32, ReduceOp::kAverage, 1, 3, /*ranks=*/2);
  ASSERT_TRUE(sum.Add<float>({4}).ok());
  EXPECT_FALSE(sum.round.Lose(NodeId(1)));
  EXPECT_TRUE(sum.round.Lose(NodeId(2)));
  sum.Settle();
  EXPECT_EQ(sum.sealed, Round(1));
  EXPECT_EQ(sum.last.contributors, 1u);
  EXPECT_EQ(sum.Result<float>()[0], 2) << "4 over 2 ranks";
}

TEST(OpenRoundTest, LossCompletesNoRoundWithoutContributions) {
  RoundUnderTest sum(DType::kFloat32, ReduceOp::kSum, 1, 1);
  EXPECT_FALSE(sum.round.Lose(NodeId(0)));
}

TEST(OpenRoundTest, LostNodesOfTheSpecificationTakeNoPart) {
  RoundUnderTest all(DType::kFloat32, ReduceOp::kSum, 1, 3);
  all.spec.lost = {NodeId(0), NodeId(2)};
  OpenRound round(&all.spec, &all.memory);
  EXPECT_EQ(round.collector().turn(), NodeId(1));
  const std::vector<float> value = {7};
  ASSERT_TRUE(round.Take(Payload(AsBytes(value)), Encoding::kRaw, false).ok());
  const auto outcome = round.Settle();
  ASSERT_TRUE(outcome.has_value());
  EXPECT_EQ(outcome->contributors, 1u);
}

TEST(OpenRoundTest, BroadcastIsLostWithItsRootUnlessTheDataIsThere) {
  RoundUnderTest without(DType::kFloat32, ReduceOp::kBroadcast, 1, 3);
  ASSERT_TRUE(without.AddNothing().ok());
  EXPECT_FALSE(without.round.RootIsLost()) << "a remaining node may have the data";
  without.round.Lose(NodeId(2));
  EXPECT_TRUE(without.round.RootIsLost());
  EXPECT_TRUE(absl::IsFailedPrecondition(without.round.CheckRoot()));
  RoundUnderTest with(DType::kFloat32, ReduceOp::kBroadcast, 1, 3);
  ASSERT_TRUE(with.Add<float>({1}).ok());
  with.round.Lose(NodeId(2));
  EXPECT_FALSE(with.round.RootIsLost());
  EXPECT_TRUE(with.round.CheckRoot().ok());
  RoundUnderTest sum(DType::kFloat32, ReduceOp::kSum, 1, 3);
  sum.round.Lose(NodeId(2));
  EXPECT_FALSE(sum.round.RootIsLost());
  EXPECT_TRUE(sum.round.CheckRoot().ok());
}

TEST(OpenRoundTest, KeptReferenceToTheMemoryOfAClosedLinkIsMissingAgain) {
  const std::vector<float> lent_values = {2};
  RoundUnderTest sum(DType::kFloat32, ReduceOp::kSum, 1, 2);
  sum.round.Keep(NodeId(1), std::make_unique<EarlyContribution>(
                                Payload(AsBytes(lent_values), [] {}), /*empty=*/false));
  sum.round.ForgetReferences(NodeId(1));
  ASSERT_TRUE(sum.Add<float>({1}).ok());
  EXPECT_EQ(sum.round.Advance(), Collector::Next::kWait);
}

TEST(OpenRoundTest, RestartForgetsTheContributions) {
  const std::vector<float> early = {50};
  RoundUnderTest sum(DType::kFloat32, ReduceOp::kSum, 1, 3);
  ASSERT_TRUE(sum.Add<float>({10}).ok());
  sum.round.Keep(NodeId(2), std::make_unique<EarlyContribution>(Payload(AsBytes(early), [] {}),
                                                                /*empty=*/false));
  sum.round.Restart(Round(5));
  EXPECT_EQ(sum.round.collector().round(), Round(5));
  EXPECT_FALSE(sum.round.collector().IsOpen());
  for (const float value : {1, 2, 3}) ASSERT_TRUE(sum.Add<float>({value}).ok());
  EXPECT_EQ(sum.sealed, Round(5));
  EXPECT_EQ(sum.Result<float>()[0], 6);
  sum.round.Restart(Round(2));
  EXPECT_EQ(sum.round.collector().round(), Round(6)) << "a sealed round does not open again";
}

TEST(OpenRoundTest, GoBackOpensTheFormerRoundAgain) {
  RoundUnderTest sum(DType::kFloat32, ReduceOp::kSum, 1, 2);
  for (const float value : {1, 2, 100}) ASSERT_TRUE(sum.Add<float>({value}).ok());
  sum.round.GoBack();
  EXPECT_EQ(sum.round.collector().round(), Round(1));
  EXPECT_EQ(sum.round.collector().turn(), NodeId(0));
  for (const float value : {1, 2}) ASSERT_TRUE(sum.Add<float>({value}).ok());
  EXPECT_EQ(sum.Result<float>()[0], 3);
}

TEST(OpenRoundTest, FirstFrameGivesTimeAndPriorityOfTheRound) {
  const absl::Time start = absl::FromUnixSeconds(1'000);
  RoundUnderTest sum(DType::kFloat32, ReduceOp::kSum, 1, 1);
  EXPECT_EQ(sum.round.open_since(), absl::InfiniteFuture());
  sum.round.Touch(start, 3);
  sum.round.Touch(start + absl::Seconds(1), 4);
  EXPECT_EQ(sum.round.open_since(), start);
  EXPECT_EQ(sum.round.priority(), 3);
  ASSERT_TRUE(sum.Add<float>({1}).ok());
  EXPECT_EQ(sum.round.open_since(), absl::InfiniteFuture());
  EXPECT_EQ(sum.round.priority(), 3) << "for the result";
  sum.round.Touch(start + absl::Seconds(2), 5);
  EXPECT_EQ(sum.round.priority(), 5);
}

TEST(ParticipantsRoundTest, NodesWithoutParticipantsAreNotAwaitedAndAverageCountsTheOthersRanks) {
  RoundUnderTest test(DType::kFloat32, ReduceOp::kAverage, 2, /*nodes=*/4, /*ranks=*/2);
  // Ranks 0, 1 and 5: both of node 0, one of node 2.
  test.spec.participants =
      std::make_shared<Participants>(Participants::FromBits("\x23", 8).value());
  OpenRound round(&test.spec, &test.memory);
  EXPECT_EQ(round.collector().turn(), NodeId(0));
  const std::vector<float> of_two_ranks = {1, 4};
  const std::vector<float> of_one = {2, 5};
  ASSERT_TRUE(round.Take(Payload(AsBytes(of_two_ranks)), Encoding::kRaw, /*empty=*/false).ok());
  EXPECT_FALSE(round.Settle().has_value());
  EXPECT_EQ(round.collector().turn(), NodeId(2));
  ASSERT_TRUE(round.Take(Payload(AsBytes(of_one)), Encoding::kRaw, /*empty=*/false).ok());
  const auto outcome = round.Settle();
  ASSERT_TRUE(outcome.has_value());
  EXPECT_EQ(outcome->contributors, 2u);
  const auto* const result = reinterpret_cast<const float*>(test.memory.result[1]);
  EXPECT_EQ(result[0], 1.0f);
  EXPECT_EQ(result[1], 3.0f);
}

TEST(ParticipantsRoundTest, RootOfABroadcastIsLostOnlyWithANodeThatTakesPart) {
  RoundUnderTest test(DType::kFloat32, ReduceOp::kBroadcast, 2, /*nodes=*/3);
  test.spec.participants =
      std::make_shared<Participants>(Participants::FromBits("\x05", 3).value());
  OpenRound round(&test.spec, &test.memory);
  EXPECT_FALSE(round.RootIsLost());
  round.Lose(NodeId(2));
  EXPECT_TRUE(round.RootIsLost());
}

// ---- encoded contributions ----

// Elements of the kinds that encodings know, in rows of different lengths.
std::vector<std::byte> ElementsOf(DType dtype, size_t elements, std::mt19937_64* random) {
  std::vector<std::byte> bytes(elements * SizeOf(dtype));
  const bool floats = dtype == DType::kFloat32;
  uint64_t style = 0;
  for (size_t i = 0; i < elements; ++i) {
    if ((*random)() % 100 == 0) style = (*random)() % 5;
    uint64_t bits = (*random)();
    if (floats) {  // of magnitudes that meet in sums
      const auto f = static_cast<float>(static_cast<int32_t>(bits)) * 0x1p-31f;
      bits = std::bit_cast<uint32_t>(f);
    }
    if (style == 0) bits = 0;
    if (style == 1) bits &= 0xffffffffffff0000;
    if (style == 2) bits &= 0xffffffffffffff00;
    if (style == 3) bits = bits % 8 == 0 ? bits : 0x8000000080008000 & bits;
    std::memcpy(bytes.data() + i * SizeOf(dtype), &bits, SizeOf(dtype));
  }
  return bytes;
}

// The result of a round: node i's contribution is encoded if bit i of `encoded` is set; it arrives
// early in a buffer if bit i of `early` is set.
std::vector<std::byte> ResultOf(DType dtype, ReduceOp op, size_t elements,
                                const std::vector<std::vector<std::byte>>& contributions,
                                uint64_t encoded, uint64_t early) {
  MemoryBudget budget(0);
  const auto buffers = EarlyBuffers::Create(&budget);
  const auto job = std::make_shared<JobMemory>(&budget, 0);
  const auto nodes = static_cast<uint32_t>(contributions.size());
  RoundUnderTest sum(dtype, op, elements, nodes, /*ranks=*/3);
  const auto payload_of = [&](uint32_t node, Encoding* encoding) {
    *encoding = Encoding::kRaw;
    if (!(encoded >> node & 1)) return contributions[node];
    std::vector<std::byte> room(EncodedBytesMax(dtype, elements));
    room.resize(EncodeBlocks(dtype, contributions[node].data(), elements, room.size(), room));
    if (room.empty()) return contributions[node];
    *encoding = Encoding::kBlocks;
    return room;
  };
  for (uint32_t node = 1; node < nodes; ++node) {
    if (!(early >> node & 1)) continue;
    Encoding encoding;
    const auto payload = payload_of(node, &encoding);
    auto kept = EarlyContribution::TakeBuffer(buffers.get(), payload.size(), job);
    std::memcpy(kept->room().data(), payload.data(), payload.size());
    kept->SetEncoding(encoding);
    sum.round.Keep(NodeId(node), std::move(kept));
  }
  while (sum.sealed == Round()) {
    if (sum.round.Advance() == Collector::Next::kKept) {
      EXPECT_TRUE(sum.round.TakeKept().ok());
    } else if (sum.round.collector().IsComplete()) {
      sum.Settle();
    } else {
      Encoding encoding;
      const auto payload = payload_of(sum.round.collector().turn().value(), &encoding);
      EXPECT_TRUE(sum.round.Take(Payload(payload), encoding, false).ok());
      sum.Settle();
    }
  }
  const auto* const result = sum.memory.result[Parity(sum.sealed)];
  return std::vector<std::byte>(result, result + elements * SizeOf(dtype));
}

TEST(OpenRoundTest, EncodedContributionsGiveTheSameBits) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  constexpr DType kAll[] = {DType::kFloat32,  DType::kFloat64, DType::kFloat16,
                            DType::kBFloat16, DType::kInt32,   DType::kInt64};
  constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax};
  for (int repeat = 0; repeat < 10; ++repeat) {
    for (const DType dtype : kAll) {
      for (const ReduceOp op : kOps) {
        const size_t elements = 1 + random() % 5000;
        std::vector<std::vector<std::byte>> contributions;
        const size_t nodes = 1 + random() % 9;
        for (size_t i = 0; i < nodes; ++i) {
          contributions.push_back(ElementsOf(dtype, elements, &random));
        }
        const auto raw = ResultOf(dtype, op, elements, contributions, 0, 0);
        ASSERT_EQ(ResultOf(dtype, op, elements, contributions, ~0ull, 0), raw);
        ASSERT_EQ(ResultOf(dtype, op, elements, contributions, ~0ull, ~0ull), raw);
        ASSERT_EQ(ResultOf(dtype, op, elements, contributions, random(), random()), raw);
      }
    }
  }
}

TEST(OpenRoundTest, AZeroBlockIsAddedAndNotSkipped) {
  const std::vector<std::vector<std::byte>> contributions = {std::vector<std::byte>(256),
                                                             std::vector<std::byte>(256)};
  auto minus = contributions;
  for (size_t i = 3; i < 256; i += 4) minus[0][i] = std::byte{0x80};  // -0.0
  const auto sum = ResultOf(DType::kFloat32, ReduceOp::kSum, 64, minus, ~0ull, 0);
  EXPECT_EQ(sum, contributions[0]) << "-0.0 + 0.0 is 0.0";
}

TEST(OpenRoundTest, AnEncodedBroadcastIsDecoded) {
  std::mt19937_64 random(1);
  RoundUnderTest sum(DType::kFloat32, ReduceOp::kBroadcast, 3000, 2);
  const std::vector<float> values(3000, 0.5f);
  std::vector<std::byte> room(EncodedBytesMax(DType::kFloat32, 3000));
  room.resize(EncodeBlocks(DType::kFloat32, values.data(), 3000, room.size(), room));
  ASSERT_TRUE(sum.AddNothing().ok());
  ASSERT_TRUE(sum.round.Take(Payload(room), Encoding::kBlocks, false).ok());
  sum.Settle();
  EXPECT_EQ(sum.Result<float>(), values);
}

}  // namespace
}  // namespace addend
