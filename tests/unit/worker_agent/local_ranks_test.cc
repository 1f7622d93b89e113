// The admitted trainers, by local rank.
#include "services/worker_agent/local_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/worker_agent/fake_node.h"

namespace addend {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class LocalRanksTest : public ::testing::Test {
 protected:
  LocalRanks ranks_{NodeId(3), 2, "host"};
  FakeTrainer first_{7};
  FakeTrainer second_{8};
};

TEST_F(LocalRanksTest, TellsTheRanksThatAreConnected) {
  ranks_.Enter(1, &second_);
  ranks_.TellAll(ipc::ResultMessage{.tensor = 4, .round = 1});
  ranks_.Tell(0, ipc::ResultMessage{.tensor = 4, .round = 2});
  EXPECT_THAT(second_.types(), ElementsAre(ipc::Type::kResult));
  EXPECT_EQ(second_.Last<ipc::ResultMessage>().round, 1u);
  EXPECT_EQ(ranks_.connected(), 1u);
}

TEST_F(LocalRanksTest, KnowsWhetherAllCameAndAnyLeft) {
  ranks_.Enter(0, &first_);
  EXPECT_FALSE(ranks_.all_came());
  EXPECT_TRUE(ranks_.Leave(&first_));
  EXPECT_FALSE(ranks_.Leave(&first_)) << "it has left already";
  EXPECT_TRUE(ranks_.anyone_left());
  ranks_.Enter(1, &second_);
  EXPECT_TRUE(ranks_.all_came());
  EXPECT_TRUE(ranks_.any());
}

TEST_F(LocalRanksTest, TrainerOfAnotherGenerationIsNoRank) {
  ranks_.Enter(0, &first_);
  second_.local_rank = 0;
  EXPECT_FALSE(ranks_.Leave(&second_));
  EXPECT_EQ(ranks_.at(0), &first_);
}

TEST_F(LocalRanksTest, ClosedTrainersAreRanksNoMore) {
  ranks_.Enter(0, &first_);
  ranks_.CloseAll(absl::AbortedError("the end"));
  EXPECT_EQ(first_.closed, absl::AbortedError("the end"));
  EXPECT_FALSE(ranks_.any());
  EXPECT_FALSE(ranks_.Leave(&first_));
}

TEST_F(LocalRanksTest, NamesRanksAsTheJobDoes) {
  ranks_.Enter(1, &second_);
  EXPECT_EQ(ranks_.RanksOf({0, 1}), "6, 7");
  EXPECT_EQ(ranks_.Describe(second_), "rank 7 (local rank 1 of node 3, pid 8 on host)");
  EXPECT_THAT(second_.sent, IsEmpty());
}

}  // namespace
}  // namespace addend
