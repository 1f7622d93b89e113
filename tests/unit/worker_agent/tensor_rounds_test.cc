// A tensor's rounds on a node: pushes and results.
#include "services/worker_agent/tensor_rounds.h"

#include <gtest/gtest.h>

namespace addend {
namespace {

TEST(TensorRoundsTest, RoundIsReadyWhenAllLocalRanksHavePushed) {
  TensorRounds rounds(std::vector<bool>(2, true));
  ASSERT_TRUE(rounds.OnPush(1, Round(1), false).ok());
  EXPECT_FALSE(rounds.AllPushed());
  EXPECT_EQ(rounds.Missing(), std::vector<uint32_t>{0});
  ASSERT_TRUE(rounds.OnPush(0, Round(1), true).ok());
  EXPECT_TRUE(rounds.AllPushed());
  EXPECT_TRUE(rounds.HasData(1));
  EXPECT_FALSE(rounds.HasData(0));
}

TEST(TensorRoundsTest, RanksPushRoundsWithoutGapsOrRepetitions) {
  TensorRounds rounds(std::vector<bool>(2, true));
  EXPECT_FALSE(rounds.OnPush(0, Round(2), false).ok());
  ASSERT_TRUE(rounds.OnPush(0, Round(1), false).ok());
  EXPECT_FALSE(rounds.OnPush(0, Round(1), false).ok());
  EXPECT_FALSE(rounds.OnPush(0, Round(2), false).ok()) << "round 1 has not ended";
}

TEST(TensorRoundsTest, RoundEndsWithTheResultOfItsLastPartition) {
  TensorRounds rounds(std::vector<bool>(1, true));
  ASSERT_TRUE(rounds.OnPush(0, Round(1), false).ok());
  rounds.Start(3);
  EXPECT_FALSE(rounds.OnResult(2));
  EXPECT_FALSE(rounds.OnResult(0));
  EXPECT_TRUE(rounds.OnResult(1));
  rounds.Finish();
  EXPECT_EQ(rounds.round(), Round(2));
  EXPECT_FALSE(rounds.running());
  EXPECT_TRUE(rounds.OnPush(0, Round(2), false).ok());
}

TEST(TensorRoundsTest, ResultOfAnOldRoundIsNotWanted) {
  TensorRounds rounds(std::vector<bool>(1, true));
  ASSERT_TRUE(rounds.OnPush(0, Round(1), false).ok());
  rounds.Start(1);
  EXPECT_TRUE(rounds.Wants(0, Round(1)));
  rounds.OnResult(0);
  rounds.Finish();
  EXPECT_FALSE(rounds.Wants(0, Round(1))) << "no round is running";
  ASSERT_TRUE(rounds.OnPush(0, Round(2), false).ok());
  rounds.Start(1);
  EXPECT_FALSE(rounds.Wants(0, Round(1))) << "round 2 is running";
  EXPECT_FALSE(rounds.Wants(0, Round(3)));
  EXPECT_TRUE(rounds.Wants(0, Round(2)));
}

TEST(TensorRoundsTest, HeldRoundIsThatOfTheLastResult) {
  TensorRounds rounds(std::vector<bool>(1, true));
  EXPECT_EQ(rounds.Held(0), Round(0)) << "no result so far";
  ASSERT_TRUE(rounds.OnPush(0, Round(1), false).ok());
  rounds.Start(2);
  rounds.OnResult(1);
  EXPECT_EQ(rounds.Held(0), Round(0));
  EXPECT_EQ(rounds.Held(1), Round(1));
  rounds.OnResult(0);
  rounds.Finish();
  EXPECT_EQ(rounds.Held(0), Round(1));
  EXPECT_EQ(rounds.Held(1), Round(1));
  ASSERT_TRUE(rounds.OnPush(0, Round(2), false).ok());
  rounds.Start(2);
  EXPECT_EQ(rounds.Held(1), Round(1)) << "until the next result";
}

TEST(TensorRoundsTest, NextRoundIsPushedByAllRanksAnew) {
  TensorRounds rounds(std::vector<bool>(2, true));
  EXPECT_FALSE(rounds.AnyPushed());
  ASSERT_TRUE(rounds.OnPush(0, Round(1), false).ok());
  EXPECT_TRUE(rounds.AnyPushed());
  EXPECT_TRUE(rounds.HasPushed(0));
  EXPECT_FALSE(rounds.HasPushed(1));
  ASSERT_TRUE(rounds.OnPush(1, Round(1), false).ok());
  rounds.Start(0);
  rounds.Finish();
  EXPECT_FALSE(rounds.AnyPushed());
  EXPECT_EQ(rounds.Missing(), (std::vector<uint32_t>{0, 1}));
}

TEST(TensorRoundsTest, PartitionTakesASingleResult) {
  TensorRounds rounds(std::vector<bool>(1, true));
  ASSERT_TRUE(rounds.OnPush(0, Round(1), false).ok());
  rounds.Start(2);
  rounds.OnResult(1);
  EXPECT_FALSE(rounds.Wants(1, Round(1)));
  EXPECT_TRUE(rounds.Wants(0, Round(1)));
  EXPECT_FALSE(rounds.Wants(2, Round(1))) << "no such partition";
}

TEST(TensorRoundsTest, RankThatTakesNoPartIsNotAwaited) {
  TensorRounds rounds(std::vector<bool>{true, false, true});
  EXPECT_FALSE(rounds.TakesPart(1));
  EXPECT_FALSE(rounds.HasPushed(1));
  ASSERT_TRUE(rounds.OnPush(0, Round(1), false).ok());
  EXPECT_EQ(rounds.Missing(), std::vector<uint32_t>{2});
  ASSERT_TRUE(rounds.OnPush(2, Round(1), false).ok());
  EXPECT_TRUE(rounds.AllPushed());
  rounds.Start(0);
  rounds.Finish();
  EXPECT_FALSE(rounds.AnyPushed());
  EXPECT_FALSE(rounds.TakesPart(1));
}

}  // namespace
}  // namespace addend
