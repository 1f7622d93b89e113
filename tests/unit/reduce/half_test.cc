#include "lib/reduce/half.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>

#include "tests/unit/reduce/reference.h"

namespace addend {
namespace {

TEST(HalfTest, EveryHalfWidensExactly) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float wide = HalfToFloat(static_cast<uint16_t>(bits));
    const double expected = reference::Decode(bits, 5, 10);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(wide)) << bits;
      ASSERT_EQ(FloatToHalf(wide), kHalfNan) << bits;
    } else {
      ASSERT_EQ(wide, expected) << bits;
      ASSERT_EQ(std::signbit(wide), std::signbit(expected)) << bits;
      ASSERT_EQ(FloatToHalf(wide), bits);
    }
  }
}

TEST(HalfTest, EveryBFloat16WidensExactly) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float wide = BFloat16ToFloat(static_cast<uint16_t>(bits));
    ASSERT_EQ(std::bit_cast<uint32_t>(wide), bits << 16);
    ASSERT_EQ(FloatToBFloat16(wide), std::isnan(wide) ? kBFloat16Nan : bits);
  }
}

// Around every value that two neighbouring halves have in the middle between them, and on random
// bits.
TEST(HalfTest, NarrowingRoundsToNearestEven) {
  std::mt19937 random(20240229);
  const auto check = [](uint32_t bits) {
    const float value = std::bit_cast<float>(bits);
    ASSERT_EQ(FloatToHalf(value), reference::Encode(value, 5, 10)) << std::hexfloat << value;
    ASSERT_EQ(FloatToBFloat16(value), reference::Encode(value, 8, 7)) << std::hexfloat << value;
  };
  for (uint32_t half = 0; half < 0x7c00; ++half) {
    const double middle = (reference::Decode(half, 5, 10) +
                           (half == 0x7bff ? 65536.0 : reference::Decode(half + 1, 5, 10))) /
                          2;
    const uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(middle));
    for (const uint32_t b : {bits - 1, bits, bits + 1}) {
      check(b);
      check(b | 0x80000000);
    }
  }
  for (uint32_t upper = 0; upper < 65536; ++upper) {
    for (const uint32_t lower : {0x0000u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      check(upper << 16 | lower);
  }
  for (int i = 0; i < 2'000'000; ++i) check(static_cast<uint32_t>(random()));
}

}  // namespace
}  // namespace addend
