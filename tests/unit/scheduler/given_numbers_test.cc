#include "services/scheduler/given_numbers.h"

#include <gtest/gtest.h>

#include <limits>

namespace addend {
namespace {

TEST(GivenNumbersTest, ConsecutiveNumbersAreASingleRange) {
  GivenNumbers given;
  for (uint32_t number = 7; number < 10'000; ++number) given.Insert(number);
  EXPECT_EQ(given.ranges(), 1);
  EXPECT_FALSE(given.Contains(6));
  EXPECT_TRUE(given.Contains(7));
  EXPECT_TRUE(given.Contains(9'999));
  EXPECT_FALSE(given.Contains(10'000));
}

TEST(GivenNumbersTest, GapStaysUntilItIsFilled) {
  GivenNumbers given;
  given.Insert(1);
  given.Insert(4);
  given.Insert(4);
  EXPECT_EQ(given.ranges(), 2);
  given.Insert(3);
  EXPECT_EQ(given.ranges(), 2);
  EXPECT_FALSE(given.Contains(2));
  given.Insert(2);
  EXPECT_EQ(given.ranges(), 1);
  for (uint32_t number = 1; number <= 4; ++number) EXPECT_TRUE(given.Contains(number));
}

TEST(GivenNumbersTest, LargestNumberIsARangeOfItsOwn) {
  GivenNumbers given;
  constexpr uint32_t kLargest = std::numeric_limits<uint32_t>::max();
  given.Insert(kLargest);
  given.Insert(0);
  given.Insert(kLargest - 1);
  EXPECT_EQ(given.ranges(), 2);
  EXPECT_FALSE(given.Contains(1));
  EXPECT_TRUE(given.Contains(kLargest));
}

}  // namespace
}  // namespace addend
