// Contributions go at the pace of results, and never stop.
#include "lib/transport/contribution_pace.h"

#include <gtest/gtest.h>

namespace addend {
namespace {

constexpr uint64_t kPartition = 16 << 10;

class ContributionPaceTest : public testing::Test {
 protected:
  void Send(uint32_t partition, int32_t urgency = 0, uint64_t link = 1) {
    pace_.OnSent(link, PartitionId(partition), urgency, urgency, kPartition, now_);
  }
  bool Arrived(uint32_t partition, uint64_t link = 1) {
    return pace_.OnArrived(link, PartitionId(partition), now_);
  }
  // Sends from partition `next` on while there is room; returns the number of the next partition.
  uint32_t Fill(uint32_t next) {
    while (pace_.HasRoom(0)) Send(next++);
    return next;
  }

  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
  ContributionPace pace_{4 * kPartition, 2 * kPartition};
};

TEST_F(ContributionPaceTest, AResultMakesRoomForAContribution) {
  EXPECT_EQ(Fill(1), 5u);
  EXPECT_TRUE(Arrived(2));
  EXPECT_TRUE(pace_.HasRoom(0));
  EXPECT_EQ(Fill(5), 6u);
  EXPECT_FALSE(Arrived(2)) << "once";
  EXPECT_FALSE(Arrived(1, /*link=*/2)) << "of the same link";
  EXPECT_FALSE(pace_.HasRoom(0));
}

TEST_F(ContributionPaceTest, EveryLinkHasRoomForSomePartitions) {
  pace_.SetLinks(5);
  EXPECT_EQ(Fill(1), 11u);
  pace_.SetLinks(1);
  EXPECT_FALSE(pace_.HasRoom(0));
}

TEST_F(ContributionPaceTest, EveryLinkHasRoomForItsTurnHoweverLargePartitionsAre) {
  pace_.SetLinks(5);
  uint32_t sent = 0;
  for (; pace_.HasRoom(0); ++sent) {
    pace_.OnSent(/*link=*/sent, PartitionId(1), 0, 0, 8 * kPartition, now_);
  }
  EXPECT_EQ(sent, 5u);
}

TEST_F(ContributionPaceTest, AContributionIsCountedOnceThoughItIsSentAgain) {
  for (int i = 0; i < 10; ++i) Send(1);
  EXPECT_TRUE(pace_.HasRoom(0));
  EXPECT_TRUE(Arrived(1));
  EXPECT_EQ(Fill(2), 6u);
}

TEST_F(ContributionPaceTest, AMoreUrgentContributionNeverWaitsForLessUrgentOnes) {
  Fill(1);
  EXPECT_TRUE(pace_.HasRoom(1));
  for (uint32_t i = 11; i <= 14; ++i) Send(i, /*urgency=*/1);
  EXPECT_FALSE(pace_.HasRoom(1));
  for (uint32_t i = 1; i <= 4; ++i) Arrived(i);
  EXPECT_FALSE(pace_.HasRoom(0)) << "the more urgent ones count for both";
  Arrived(11);
  EXPECT_TRUE(pace_.HasRoom(0));
}

TEST_F(ContributionPaceTest, UrgenciesMayChange) {
  for (uint32_t i = 1; i <= 4; ++i) Send(i, /*urgency=*/static_cast<int32_t>(i));
  EXPECT_TRUE(pace_.HasRoom(2));
  pace_.Reorder([](int32_t) { return 9; });
  EXPECT_FALSE(pace_.HasRoom(9));
  EXPECT_TRUE(Arrived(3));
  EXPECT_TRUE(pace_.HasRoom(9));
}

TEST_F(ContributionPaceTest, ALostLinkOwesNoResult) {
  Send(1, 0, /*link=*/1);
  for (uint32_t i = 2; i <= 4; ++i) Send(i, 0, /*link=*/2);
  pace_.OnLost(2);
  EXPECT_EQ(Fill(5), 8u) << "that of the other link is counted";
}

TEST_F(ContributionPaceTest, InASilenceTheOldestAreForgiven) {
  Fill(1);
  now_ += ContributionPace::kSilence / 2;
  pace_.OnTime(now_);
  EXPECT_FALSE(pace_.HasRoom(0));
  now_ += ContributionPace::kSilence / 2;
  pace_.OnTime(now_);
  EXPECT_EQ(Fill(5), 7u) << "half";
  EXPECT_FALSE(Arrived(1)) << "one of the oldest";
  EXPECT_TRUE(Arrived(3));
  now_ += ContributionPace::kSilence * 0.9;
  pace_.OnTime(now_);
  EXPECT_EQ(Fill(7), 8u) << "results came";
}

TEST_F(ContributionPaceTest, ASilenceDoesNotBeginBeforeTheFirstContribution) {
  now_ += absl::Hours(1);
  Fill(1);
  pace_.OnTime(now_);
  EXPECT_FALSE(pace_.HasRoom(0));
}

// Some results come all the time, and others wait for nodes that push in another order.
TEST_F(ContributionPaceTest, AContributionIsForgivenAfterASecondAtTheLatest) {
  uint32_t next = 2;
  Send(1);
  Send(2);
  Send(3);
  for (absl::Duration passed; passed < ContributionPace::kLongest;
       passed += ContributionPace::kSilence / 2) {
    next = 100;
    Send(next);
    EXPECT_FALSE(pace_.HasRoom(0));
    now_ += ContributionPace::kSilence / 2;
    EXPECT_TRUE(Arrived(next));
    pace_.OnTime(now_);
  }
  EXPECT_EQ(Fill(101), 105u);
}

}  // namespace
}  // namespace addend
