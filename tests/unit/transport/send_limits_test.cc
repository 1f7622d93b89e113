#include "lib/transport/send_limits.h"

#include <gtest/gtest.h>

namespace addend {
namespace {

TEST(SendLimitsTest, AnUnknownOrFastLinkHasTheDefaultLimits) {
  for (const double bps : {0.0, 10e9, 100e9}) {
    const SendLimits limits = SendLimitsFor(bps);
    EXPECT_EQ(limits.window_bytes, SendLimits().window_bytes);
    EXPECT_EQ(limits.lead_bytes, SendLimits().lead_bytes);
    EXPECT_EQ(PartInFlight(limits.results_in_flight, 0.5), SendLimits::kUnlimited)
        << "the kernel's own choice";
    EXPECT_EQ(PartInFlight(limits.contributions_in_flight, 0.5), SendLimits::kUnlimited);
    EXPECT_EQ(limits.contributions_awaited, SendLimits::kUnlimited);
  }
}

TEST(SendLimitsTest, ASlowLinkHasLimitsOfMilliseconds) {
  const SendLimits limits = SendLimitsFor(400e6);  // 50 bytes a microsecond
  EXPECT_EQ(limits.window_bytes, 25'000u);
  EXPECT_EQ(limits.lead_bytes, 100'000u);
  EXPECT_EQ(PartInFlight(limits.contributions_in_flight, 0.25), 125'000u);
  EXPECT_EQ(PartInFlight(limits.results_in_flight, 0.25), 275'000u);
  EXPECT_EQ(limits.contributions_awaited, 1'200'000u);
  EXPECT_EQ(SendLimitsFor(1e6).window_bytes, 16u << 10) << "none is smaller";
}

TEST(SendLimitsTest, ServerSendsItsResultsToAllNodes) {
  EXPECT_EQ(BytesSentBeside(/*colocated=*/false, 1000, 200, 4 * 200), 800);
}

TEST(SendLimitsTest, ColocatedServerSharesItsLinkWithTheContributionsOfItsNode) {
  EXPECT_EQ(BytesSentBeside(/*colocated=*/true, 1000, 200, 4 * 200), 800 + 600);
  EXPECT_EQ(BytesSentBeside(/*colocated=*/true, 1000, 1000, 1000), 0) << "nothing leaves";
}

}  // namespace
}  // namespace addend
