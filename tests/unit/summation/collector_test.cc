// The order of the nodes in a round.
#include "lib/summation/collector.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace addend {
namespace {

using Standing = Collector::Standing;
using Next = Collector::Next;

TEST(CollectorTest, NodesAreSummedInAscendingOrderWhateverTheOrderOfArrival) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  constexpr uint32_t kNodes = 5;
  Collector collector(kNodes);
  for (uint64_t round = 1; round <= 100; ++round) {
    std::vector<uint32_t> arrival = {0, 1, 2, 3, 4};
    std::shuffle(arrival.begin(), arrival.end(), random);
    std::vector<uint32_t> order;
    for (const uint32_t node : arrival) {
      const Standing standing = collector.Classify(NodeId(node), Round(round));
      if (standing == Standing::kEarly) {
        collector.Keep(NodeId(node));
        continue;
      }
      ASSERT_EQ(standing, Standing::kItsTurn);
      order.push_back(node);
      collector.Summed();
      while (collector.Advance() == Next::kKept) {
        order.push_back(collector.turn().value());
        collector.Summed();
      }
    }
    ASSERT_EQ(collector.Advance(), Next::kSeal);
    EXPECT_EQ(order, (std::vector<uint32_t>{0, 1, 2, 3, 4})) << "round " << round;
    collector.Seal();
  }
}

TEST(CollectorTest, DroppedContributionIsRequestedOnceAtItsTurn) {
  Collector collector(2);
  collector.Drop(NodeId(1));
  EXPECT_EQ(collector.Advance(), Next::kWait) << "node 0 is missing";
  collector.Summed();
  EXPECT_TRUE(collector.HasPushed(NodeId(1)));
  EXPECT_EQ(collector.Advance(), Next::kAsk);
  EXPECT_FALSE(collector.HasPushed(NodeId(1))) << "the round waits for it";
  EXPECT_EQ(collector.Advance(), Next::kWait) << "it has been asked for";
  EXPECT_EQ(collector.Classify(NodeId(1), Round(1)), Standing::kItsTurn);
}

TEST(CollectorTest, SecondContributionToARoundIsRepeated) {
  Collector collector(3);
  collector.Summed();
  collector.Keep(NodeId(2));
  EXPECT_EQ(collector.Classify(NodeId(0), Round(1)), Standing::kRepeated);
  EXPECT_EQ(collector.Classify(NodeId(2), Round(1)), Standing::kRepeated);
}

TEST(CollectorTest, EarlierAndLaterRoundsHaveTheirOwnStandings) {
  Collector collector(1);
  for (int i = 0; i < 3; ++i) {
    collector.Summed();
    collector.Seal();
  }
  ASSERT_EQ(collector.round(), Round(4));
  EXPECT_EQ(collector.Classify(NodeId(0), Round(5)), Standing::kAhead);
  EXPECT_EQ(collector.Classify(NodeId(0), Round(4)), Standing::kItsTurn);
  EXPECT_EQ(collector.Classify(NodeId(0), Round(3)), Standing::kSealed);
  EXPECT_EQ(collector.Classify(NodeId(0), Round(2)), Standing::kOld);
}

TEST(CollectorTest, ForgottenContributionMayArriveAgain) {
  Collector collector(2);
  collector.Keep(NodeId(1));
  collector.Forget(NodeId(1));
  EXPECT_FALSE(collector.HasPushed(NodeId(1)));
  EXPECT_EQ(collector.Classify(NodeId(1), Round(1)), Standing::kEarly);
}

TEST(CollectorTest, RoundIsOpenFromItsFirstContribution) {
  Collector collector(2);
  EXPECT_FALSE(collector.IsOpen());
  collector.Drop(NodeId(1));
  EXPECT_TRUE(collector.IsOpen());
  EXPECT_TRUE(collector.HasPushed(NodeId(1)));
  EXPECT_FALSE(collector.HasPushed(NodeId(0)));
}

TEST(CollectorTest, LostNodeIsSkippedInThisAndAllLaterRounds) {
  Collector collector(3);
  collector.Keep(NodeId(1));
  collector.Lose(NodeId(0));
  EXPECT_EQ(collector.contributors(), 2u);
  EXPECT_EQ(collector.turn(), NodeId(1));
  EXPECT_EQ(collector.Advance(), Next::kKept);
  collector.Summed();
  EXPECT_TRUE(collector.IsLast());
  collector.Summed();
  EXPECT_TRUE(collector.IsComplete());
  collector.Seal();
  EXPECT_EQ(collector.turn(), NodeId(1));
  EXPECT_FALSE(collector.IsOpen());
  EXPECT_FALSE(collector.TakesPart(NodeId(0)));
}

TEST(CollectorTest, ContributionOfALostNodeCountsInTheOpenRound) {
  Collector collector(3);
  collector.Summed();
  collector.Keep(NodeId(2));
  collector.Lose(NodeId(0));
  collector.Lose(NodeId(2));
  EXPECT_EQ(collector.contributors(), 3u);
  collector.Summed();
  EXPECT_EQ(collector.Advance(), Next::kKept);
  collector.Summed();
  collector.Seal();
  EXPECT_EQ(collector.contributors(), 1u);
}

TEST(CollectorTest, DroppedContributionOfALostNodeIsNotRequested) {
  Collector collector(2);
  collector.Drop(NodeId(1));
  collector.Summed();
  collector.Lose(NodeId(1));
  EXPECT_TRUE(collector.IsComplete());
  EXPECT_EQ(collector.Advance(), Next::kSeal);
}

}  // namespace
}  // namespace addend
