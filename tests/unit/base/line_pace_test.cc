#include "lib/base/line_pace.h"

#include <gtest/gtest.h>

namespace addend {
namespace {

TEST(LinePaceTest, LetsOneLineASecondThroughAndCountsTheOthers) {
  LinePace pace;
  const absl::Time start = absl::FromUnixSeconds(1'700'000'000);
  EXPECT_EQ(pace.Next(start), "");
  for (int i = 1; i <= 3; ++i) {
    EXPECT_EQ(pace.Next(start + i * absl::Milliseconds(300)), std::nullopt);
  }
  EXPECT_EQ(pace.Next(start + absl::Seconds(1)), " (and 3 others since the last line)");
  EXPECT_EQ(pace.Next(start + absl::Seconds(2)), "");
}

TEST(LinePaceTest, LetsTheGivenNumberOfLinesThrough) {
  LinePace pace(2);
  const absl::Time start = absl::FromUnixSeconds(1'700'000'000);
  EXPECT_EQ(pace.Next(start), "");
  EXPECT_EQ(pace.Next(start), "");
  EXPECT_EQ(pace.Next(start), std::nullopt);
  EXPECT_EQ(pace.Next(start + absl::Seconds(1)), " (and 1 others since the last line)");
  EXPECT_EQ(pace.Next(start + absl::Seconds(1)), "");
  EXPECT_EQ(pace.Next(start + absl::Seconds(1)), std::nullopt);
}

}  // namespace
}  // namespace addend
