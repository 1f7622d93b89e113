#include "lib/reduce/rounding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "hwy/highway.h"
#include "lib/reduce/block_codec.h"
#include "lib/reduce/half.h"

namespace addend {
namespace {

constexpr WireFormat kBf16{WireDType::kBFloat16, false}, kFp16{WireDType::kFloat16, false},
    kInt8{WireDType::kInt8, false};
constexpr WireFormat kAll[] = {kBf16,
                               kFp16,
                               kInt8,
                               {WireDType::kBFloat16, true},
                               {WireDType::kFloat16, true},
                               {WireDType::kInt8, true}};

// Runs every test of this file with every vector target that this machine has.
class RoundingTest : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }

  static std::vector<float> Round(const WireFormat& format, const std::vector<float>& in,
                                  uint64_t key = 7, uint64_t first = 0) {
    std::vector<float> out(in.size());
    RoundToWire(format, key, first, in.size(), in.data(), out.data());
    return out;
  }
  // Of magnitudes from denormals to infinities.
  std::vector<float> AnyFloats(size_t count, bool special) {
    std::vector<float> elements(count);
    for (float& element : elements) {
      auto bits = static_cast<uint32_t>(random_());
      if (!special && (bits & 0x7f800000) == 0x7f800000) bits &= 0xbfffffff;
      element = std::bit_cast<float>(bits);
    }
    return elements;
  }
  // Of similar magnitudes, as gradients are.
  std::vector<float> Gradients(size_t count) {
    std::normal_distribution<float> normal(0, 1e-3f);
    std::vector<float> elements(count);
    for (float& element : elements) element = normal(random_);
    return elements;
  }

  std::mt19937_64 random_{42};
};
INSTANTIATE_TEST_SUITE_P(Targets, RoundingTest,
                         testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& info) { return std::string(hwy::TargetName(info.param)); });

void ExpectSameBits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(a[i]), std::bit_cast<uint32_t>(b[i])) << "element " << i;
  }
}

TEST_P(RoundingTest, FormatsHaveNames) {
  for (const WireFormat& format : kAll) EXPECT_EQ(WireFormatOf(ToString(format)), format);
  EXPECT_EQ(ToString(kInt8), "int8");
  EXPECT_EQ(WireFormatOf("same"), WireFormat());
  EXPECT_EQ(WireFormatOf("int4"), std::nullopt);
  EXPECT_EQ(WireFormatOf("same stochastic"), std::nullopt);
}

TEST_P(RoundingTest, SixteenBitsAreRoundedToNearestAsSumsAre) {
  std::vector<float> elements = AnyFloats(20'000, /*special=*/true);
  for (uint32_t i = 0; i < 20'000; ++i) {  // around float16's range, and ties
    elements.push_back(std::bit_cast<float>(0x33000000u + (static_cast<uint32_t>(random_()) >> 3)));
    elements.push_back(std::bit_cast<float>(static_cast<uint32_t>(random_()) & 0xffff8000));
  }
  for (const float special :
       {0.0f, -0.0f, 65504.0f, 65519.0f, 65520.0f, 0x1p-24f, 0x1p-25f, 0x1p-14f,
        std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::quiet_NaN()}) {
    elements.push_back(special);
  }
  std::vector<float> bf16, fp16;
  for (const float element : elements) {
    bf16.push_back(BFloat16ToFloat(FloatToBFloat16(element)));
    fp16.push_back(HalfToFloat(FloatToHalf(element)));
  }
  ExpectSameBits(Round(kBf16, elements), bf16);
  ExpectSameBits(Round(kFp16, elements), fp16);
}

TEST_P(RoundingTest, AnInt8BlockIsWithinHalfOfItsUnit) {
  const std::vector<float> elements = Gradients(6400);
  const std::vector<float> rounded = Round(kInt8, elements);
  for (size_t block = 0; block < elements.size(); block += 64) {
    float most = 0;
    for (size_t i = 0; i < 64; ++i) most = std::max(most, std::abs(elements[block + i]));
    const float unit = std::exp2(std::floor(std::log2(most)) - 6);
    for (size_t i = block; i < block + 64; ++i) {
      const bool largest = std::abs(elements[i]) > 127 * unit;  // 128 has no byte
      EXPECT_LE(std::abs(rounded[i] - elements[i]), unit * (largest ? 1 : 0.5f));
      EXPECT_EQ(rounded[i] / unit, std::round(rounded[i] / unit));
    }
  }
}

TEST_P(RoundingTest, RoundedElementsFitTheirEncoding) {
  for (const WireFormat& format : kAll) {
    const std::vector<float> rounded = Round(format, Gradients(64'000));
    std::vector<std::byte> room(EncodedBytesMax(DType::kFloat32, rounded.size()));
    const size_t bytes =
        EncodeBlocks(DType::kFloat32, rounded.data(), rounded.size(), room.size(), room);
    const double of_element = static_cast<double>(bytes) / static_cast<double>(rounded.size());
    EXPECT_LE(of_element, format.dtype == WireDType::kInt8 ? 65.5 / 64 : 2.01) << ToString(format);
  }
}

TEST_P(RoundingTest, RoundingToNearestTwiceIsRoundingOnce) {
  for (const WireFormat& format : {kBf16, kFp16, kInt8}) {
    for (const auto& elements : {Gradients(1000), AnyFloats(100'000, false)}) {
      const std::vector<float> rounded = Round(format, elements);
      ExpectSameBits(Round(format, rounded), rounded);
    }
  }
}

TEST_P(RoundingTest, StochasticRoundingLeavesElementsOfTheGridAlone) {
  for (const WireDType dtype : {WireDType::kBFloat16, WireDType::kFloat16, WireDType::kInt8}) {
    const std::vector<float> rounded = Round({dtype, false}, Gradients(10'000));
    ExpectSameBits(Round({dtype, true}, rounded), rounded);
  }
}

TEST_P(RoundingTest, StochasticRoundingIsRightOnAverage) {
  for (const WireDType dtype : {WireDType::kBFloat16, WireDType::kFloat16, WireDType::kInt8}) {
    std::vector<float> elements(64 * 4000, 0.3f / 1000);
    for (size_t i = 0; i < elements.size(); i += 64) elements[i] = 1;  // sets the unit of int8
    const std::vector<float> rounded = Round({dtype, true}, elements);
    double sum = 0;
    size_t ups = 0;
    for (size_t i = 0; i < elements.size(); ++i) {
      if (i % 64 == 0) continue;
      sum += rounded[i];
      ups += rounded[i] > elements[i] ? 1 : 0;
    }
    const double mean = sum / static_cast<double>(elements.size() / 64 * 63);
    EXPECT_NEAR(mean, elements[1], elements[1] * (dtype == WireDType::kInt8 ? 0.05 : 1e-4));
    EXPECT_GT(ups, 0u);
    EXPECT_LT(ups, elements.size());
  }
}

TEST_P(RoundingTest, TheResultDependsOnTheTensorAndNotOnItsPieces) {
  const std::vector<float> elements = Gradients(1000);
  for (const WireFormat& format : kAll) {
    const std::vector<float> whole = Round(format, elements, 5, 128);
    std::vector<float> pieces;
    for (size_t at = 0; at < elements.size(); at += 192) {
      const size_t end = std::min(at + 192, elements.size());
      const auto piece =
          Round(format, {elements.begin() + at, elements.begin() + end}, 5, 128 + at);
      pieces.insert(pieces.end(), piece.begin(), piece.end());
    }
    ExpectSameBits(pieces, whole);
    std::vector<float> in_place = elements;
    RoundToWire(format, 5, 128, in_place.size(), in_place.data(), in_place.data());
    ExpectSameBits(in_place, whole);
  }
}

TEST_P(RoundingTest, OtherKeysRoundOtherwise) {
  const std::vector<float> elements = Gradients(1000);
  const WireFormat format{WireDType::kInt8, true};
  EXPECT_NE(Round(format, elements, RoundingKey("a", 1, 0)),
            Round(format, elements, RoundingKey("a", 1, 1)));
  EXPECT_NE(Round(format, elements, RoundingKey("a", 1, 0)),
            Round(format, elements, RoundingKey("a", 2, 0)));
  EXPECT_NE(Round(format, elements, RoundingKey("a", 1, 0)),
            Round(format, elements, RoundingKey("b", 1, 0)));
  EXPECT_NE(Round(format, elements, 5, 0), Round(format, elements, 5, 64));
  EXPECT_NE(Round(format, elements, 5, 0), Round(format, elements, 5, uint64_t{1} << 32));
}

TEST_P(RoundingTest, SpecialValuesOfABlockStay) {
  std::vector<float> elements(128, 0.1f);
  elements[3] = std::numeric_limits<float>::infinity();
  const std::vector<float> rounded = Round(kInt8, elements);
  ExpectSameBits({rounded.begin(), rounded.begin() + 64},
                 {elements.begin(), elements.begin() + 64});
  EXPECT_NE(rounded[64], 0.1f) << "the next block is rounded";
  EXPECT_FALSE(std::signbit(Round(kInt8, {-0.0f})[0])) << "a byte has no -0";
}

TEST_P(RoundingTest, AllTargetsAgree) {
  const std::vector<float> elements = AnyFloats(6400, false);
  for (const WireFormat& format : kAll) {
    const auto here = Round(format, elements);
    hwy::SetSupportedTargetsForTest(0);
    const auto best = Round(format, elements);
    hwy::SetSupportedTargetsForTest(GetParam());
    ExpectSameBits(here, best);
  }
}

}  // namespace
}  // namespace addend
