// The tree of a round's sum: its order for every number of nodes, whatever is left out, and the
// memory of contributions.
#include "lib/summation/round_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/sum_tree.h"
#include "lib/reduce/block_codec.h"
#include "lib/reduce/half.h"
#include "tests/unit/summation/tree_reference.h"

namespace addend {
namespace {

constexpr uint64_t kElements = 200;

TEST(SumTreeTest, EightPositionsAreAGroupAndEightGroupsAre) {
  EXPECT_EQ(SumLevels(1), 1u);
  EXPECT_EQ(SumLevels(8), 1u);
  EXPECT_EQ(SumLevels(9), 2u);
  EXPECT_EQ(SumLevels(64), 2u);
  EXPECT_EQ(SumLevels(65), 3u);
  EXPECT_EQ(SumLevels(4096), 4u);
  EXPECT_EQ(SumLevels(65536), kSumLevelsMost);
}

TEST(SumTreeTest, WholeGroupsAndTheFirstTermsOfAGroupHaveSums) {
  constexpr uint32_t kPositions = 100;
  const auto entry = [](uint32_t first, uint32_t count) {
    const auto found = EntryOf({.first = first, .count = count}, kPositions);
    return found.has_value() ? std::optional(std::pair(found->level, found->starts)) : std::nullopt;
  };
  using Entry = std::pair<uint32_t, bool>;
  EXPECT_EQ(entry(8, 8), Entry(1, false));
  EXPECT_EQ(entry(0, 64), Entry(2, false));
  EXPECT_EQ(entry(8, 4), Entry(0, true));
  EXPECT_EQ(entry(8, 1), Entry(0, true));
  EXPECT_EQ(entry(64, 24), Entry(1, true));
  // The last groups are incomplete.
  EXPECT_EQ(entry(96, 4), Entry(1, false));
  EXPECT_EQ(entry(64, 36), Entry(2, false));
  EXPECT_EQ(entry(0, 100), std::nullopt) << "that is the result";
  EXPECT_EQ(entry(4, 4), std::nullopt);
  EXPECT_EQ(entry(8, 16), std::nullopt) << "not the first terms of 64";
  EXPECT_EQ(entry(0, 12), std::nullopt);
  EXPECT_EQ(entry(96, 5), std::nullopt);
  EXPECT_EQ(entry(4294967295, 2), std::nullopt);
  EXPECT_EQ(entry(8, 0), std::nullopt);
}

class RoundSumTest : public ::testing::Test {
 protected:
  void MakeMemory(DType dtype, uint32_t nodes) {
    const size_t accumulator = kElements * AccumulatorSizeOf(dtype);
    memory_bytes_.assign((SumLevels(nodes) + 1) * accumulator, std::byte{0x5a});
    memory_ = {memory_bytes_.data(), memory_bytes_.data(), memory_bytes_.data() + accumulator};
  }
  static EncodedBytes Raw(const Values& values) {
    return {std::as_bytes(std::span(values)), Encoding::kRaw};
  }
  // Adds the contributions, and in place of some spans of them their sums, each made in this way.
  static Values SumOf(std::span<const std::optional<Values>> contributions, std::mt19937* random) {
    const auto nodes = static_cast<uint32_t>(contributions.size());
    std::vector<Values> memory(SumLevels(nodes), Values(kElements));
    std::vector<Values> partial(1, Values(SumLevels(nodes) * kElements));
    const RoundSum::Memory parts{reinterpret_cast<std::byte*>(memory[0].data()),
                                 reinterpret_cast<std::byte*>(memory[0].data()),
                                 reinterpret_cast<std::byte*>(partial[0].data())};
    RoundSum sum(DType::kFloat32, ReduceOp::kSum, kElements, nodes);
    bool any = false;
    for (uint32_t i = 0; i < nodes;) {
      SumSpan span{.first = i, .count = 1 + static_cast<uint32_t>((*random)() % (nodes - i))};
      while (span.count > 1 && !EntryOf(span, nodes).has_value()) --span.count;
      const auto part = contributions.subspan(span.first, span.count);
      const bool anything =
          std::any_of(part.begin(), part.end(), [](const auto& part) { return part.has_value(); });
      if (anything && span.count > 1) {
        const Values of_span = SumOf(part, random);
        sum.AddSpan(span, std::as_bytes(std::span(of_span)), parts);
      } else if (anything) {
        sum.Add(i, NodeId(i), Raw(*part[0]), nullptr, parts);
      }
      any |= anything;
      i = span.end();
    }
    if (any) sum.FinishSum(parts);
    return any ? memory[0] : Values(kElements);
  }
  Values Result() const {
    Values values(kElements);
    std::memcpy(values.data(), memory_.result, kElements * sizeof(float));
    return values;
  }

  std::mt19937 random_{20261128};
  std::vector<std::byte> memory_bytes_;
  RoundSum::Memory memory_{};
};

// In the order of the nodes each 1 would be lost in 2^24.
TEST_F(RoundSumTest, SecondGroupIsSummedBeforeItIsAdded) {
  MakeMemory(DType::kFloat32, 10);
  const Values large(kElements, 0x1p24F), one(kElements, 1);
  RoundSum sum(DType::kFloat32, ReduceOp::kSum, kElements, 10);
  sum.Add(0, NodeId(0), Raw(large), nullptr, memory_);
  sum.Add(8, NodeId(8), Raw(one), nullptr, memory_);
  sum.Add(9, NodeId(9), Raw(one), nullptr, memory_);
  sum.Finish(memory_, 1);
  EXPECT_EQ(Result(), Values(kElements, 0x1p24F + 2));
}

TEST_F(RoundSumTest, EveryNumberOfNodesIsSummedByTheTreeWhateverIsMissing) {
  for (const uint32_t nodes : {1, 7, 8, 9, 16, 17, 63, 64, 65, 72, 100, 512, 513, 600}) {
    for (const double missing : {0.0, 0.2, 0.9}) {
      for (const auto& [op, combine] : {std::pair{ReduceOp::kSum, &Add}, {ReduceOp::kMin, &Min}}) {
        const auto contributions = DrawAll(nodes, kElements, missing, &random_);
        MakeMemory(DType::kFloat32, nodes);
        RoundSum sum(DType::kFloat32, op, kElements, nodes);
        for (uint32_t i = 0; i < nodes; ++i) {
          if (!contributions[i]) continue;
          sum.Add(i, NodeId(i), Raw(*contributions[i]), nullptr, memory_);
          if (random_() % 3 == 0) sum.Condense(memory_);
        }
        sum.Finish(memory_, 1);
        EXPECT_EQ(Result(), TreeOf(contributions, combine).value_or(Values(kElements)))
            << nodes << " nodes, " << missing << " missing, " << Name(op);
      }
    }
  }
}

TEST_F(RoundSumTest, SumsOfGroupsThatAreCompleteGiveTheSameBits) {
  constexpr uint32_t kNodes = 100;
  const auto contributions = DrawAll(kNodes, kElements, 0.1, &random_);
  MakeMemory(DType::kFloat32, kNodes);
  RoundSum sum(DType::kFloat32, ReduceOp::kSum, kElements, kNodes);
  for (uint32_t first = 0; first < kNodes; first += kSumRadix) {
    const auto end = contributions.begin() + std::min(first + kSumRadix, kNodes);
    const bool whole = random_() % 2 == 0;
    if (const auto group = TreeOf({contributions.begin() + first, end}, &Add); whole && group) {
      sum.AddGroup(first, std::as_bytes(std::span(*group)), memory_);
      continue;
    }
    for (uint32_t i = first; contributions.begin() + i != end; ++i) {
      if (contributions[i]) sum.Add(i, NodeId(i), Raw(*contributions[i]), nullptr, memory_);
    }
  }
  sum.Finish(memory_, 1);
  EXPECT_EQ(Result(), *TreeOf(contributions, &Add));
}

// As relays do, and the relays of relays.
TEST_F(RoundSumTest, SumsOfSpansGiveTheSameBitsWhereverTheyAreMade) {
  for (const uint32_t nodes : {9, 16, 17, 64, 72, 100, 513}) {
    for (const double missing : {0.0, 0.5}) {
      const auto contributions = DrawAll(nodes, kElements, missing, &random_);
      EXPECT_EQ(SumOf(contributions, &random_),
                TreeOf(contributions, &Add).value_or(Values(kElements)))
          << nodes << " nodes, " << missing << " missing";
    }
  }
}

TEST_F(RoundSumTest, HalfTypesAreRoundedAtTheRootAlone) {
  constexpr uint32_t kNodes = 20;
  std::vector<std::optional<Values>> wide(kNodes);
  std::vector<std::vector<uint16_t>> narrow(kNodes, std::vector<uint16_t>(kElements));
  MakeMemory(DType::kBFloat16, kNodes);
  RoundSum sum(DType::kBFloat16, ReduceOp::kAverage, kElements, kNodes);
  for (uint32_t i = 0; i < kNodes; ++i) {
    wide[i] = Draw(kElements, &random_);
    for (uint64_t e = 0; e < kElements; ++e) {
      narrow[i][e] = FloatToBFloat16((*wide[i])[e]);
      (*wide[i])[e] = BFloat16ToFloat(narrow[i][e]);
    }
    sum.Add(i, NodeId(i), {std::as_bytes(std::span(narrow[i])), Encoding::kRaw}, nullptr, memory_);
  }
  sum.Finish(memory_, kNodes);
  const Values expected = *TreeOf(wide, &Add);
  for (uint64_t e = 0; e < kElements; ++e) {
    uint16_t got;
    std::memcpy(&got, memory_.result + e * sizeof(got), sizeof(got));
    EXPECT_EQ(got, FloatToBFloat16(expected[e] / kNodes)) << e;
  }
}

TEST_F(RoundSumTest, EncodedContributionsAreDecodedOnTheWay) {
  constexpr uint32_t kNodes = 17;
  std::vector<std::optional<Values>> contributions(kNodes);
  std::vector<std::vector<std::byte>> encoded(kNodes);
  MakeMemory(DType::kFloat32, kNodes);
  RoundSum sum(DType::kFloat32, ReduceOp::kSum, kElements, kNodes);
  for (uint32_t i = 0; i < kNodes; ++i) {
    contributions[i] = Draw(kElements, &random_);
    std::fill_n(contributions[i]->begin(), 100, 0.0F);
    encoded[i].resize(EncodedBytesMax(DType::kFloat32, kElements));
    encoded[i].resize(EncodeBlocks(DType::kFloat32, contributions[i]->data(), kElements,
                                   encoded[i].size(), MutableBytes(encoded[i])));
    sum.Add(i, NodeId(i), {encoded[i], Encoding::kBlocks}, nullptr, memory_);
  }
  sum.Finish(memory_, 1);
  EXPECT_EQ(Result(), *TreeOf(contributions, &Add));
}

TEST_F(RoundSumTest, NothingIsZero) {
  for (const uint32_t nodes : {3, 30}) {
    MakeMemory(DType::kFloat32, nodes);
    RoundSum sum(DType::kFloat32, ReduceOp::kSum, kElements, nodes);
    sum.Finish(memory_, 1);
    EXPECT_EQ(Result(), Values(kElements));
  }
}

TEST_F(RoundSumTest, IsEmptyAfterItsEnd) {
  constexpr uint32_t kNodes = 70;
  MakeMemory(DType::kFloat32, kNodes);
  RoundSum sum(DType::kFloat32, ReduceOp::kSum, kElements, kNodes);
  for (const bool finished : {true, false}) {
    const Values values = Draw(kElements, &random_);
    for (uint32_t i = 60; i < kNodes; ++i) sum.Add(i, NodeId(i), Raw(values), nullptr, memory_);
    finished ? sum.Finish(memory_, 1) : sum.Clear();
    const Values alone = Draw(kElements, &random_);
    sum.Add(5, NodeId(5), Raw(alone), nullptr, memory_);
    sum.Finish(memory_, 1);
    EXPECT_EQ(Result(), alone);
  }
}

}  // namespace
}  // namespace addend
