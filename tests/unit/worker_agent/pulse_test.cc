#include "services/worker_agent/pulse.h"

#include <gtest/gtest.h>

namespace addend {
namespace {

constexpr absl::Duration kLease = absl::Seconds(6);
const absl::Time kBegin = absl::FromUnixSeconds(1000);

class PulseTest : public ::testing::Test {
 protected:
  PulseTest() { EXPECT_FALSE(pulse_.Beat(kBegin, kLease)); }
  bool BeatAt(double seconds) { return pulse_.Beat(kBegin + absl::Seconds(seconds), kLease); }

  Pulse pulse_;
};

TEST_F(PulseTest, ProcessThatRunsAsksNothing) {
  for (int second = 1; second < 10; ++second) EXPECT_FALSE(BeatAt(second));
  EXPECT_FALSE(BeatAt(12.9)) << "the job goes on without a node after a lease without heartbeats";
  EXPECT_EQ(pulse_.question(), 0u);
}

TEST_F(PulseTest, PauseOfTwoThirdsOfALeaseIsAsked) {
  EXPECT_TRUE(BeatAt(4));
  EXPECT_TRUE(pulse_.asking());
  EXPECT_EQ(pulse_.question(), 1u);
  EXPECT_FALSE(BeatAt(5)) << "it is being asked";
  EXPECT_TRUE(pulse_.Confirm(1));
  EXPECT_FALSE(pulse_.asking());
  EXPECT_FALSE(pulse_.Confirm(1));
}

TEST_F(PulseTest, AnswerAboutAnEarlierPauseIsNone) {
  BeatAt(4);
  BeatAt(9);
  EXPECT_FALSE(pulse_.Confirm(1));
  EXPECT_TRUE(pulse_.asking());
  EXPECT_TRUE(pulse_.Confirm(2));
}

TEST_F(PulseTest, ClockThatGoesBackIsNoPause) {
  EXPECT_FALSE(BeatAt(-100));
  EXPECT_FALSE(BeatAt(1));
}

TEST(PulseOfNoMemberTest, WithoutALeaseNothingIsAsked) {
  Pulse pulse;
  EXPECT_FALSE(pulse.Beat(kBegin, absl::ZeroDuration()));
  EXPECT_FALSE(pulse.Beat(kBegin + absl::Hours(1), absl::ZeroDuration()));
}

}  // namespace
}  // namespace addend
