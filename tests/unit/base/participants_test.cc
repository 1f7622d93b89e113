// Sets of ranks: their form, and the nodes that they touch.
#include "lib/base/participants.h"

#include <gtest/gtest.h>

#include <vector>

namespace addend {
namespace {

// Of a job of 20 ranks, five on each node.
Participants Of(const std::vector<uint32_t>& ranks) { return Participants::Of(ranks, 20).value(); }

TEST(ParticipantsTest, HasTheRanksThatItNames) {
  const Participants some = Of({0, 9, 10});
  EXPECT_FALSE(some.all());
  EXPECT_TRUE(some.Contains(9));
  EXPECT_FALSE(some.Contains(8));
  EXPECT_FALSE(some.Contains(1000));
  EXPECT_EQ(some.Text(), "ranks 0, 9, 10");
  EXPECT_EQ(Of({3}).Text(), "rank 3");
  EXPECT_EQ(Of({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}).Text(), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more");
}

TEST(ParticipantsTest, EqualSetsHaveTheSameBits) {
  EXPECT_EQ(Of({0, 9}).bits().size(), 2u) << "without zeros at the end";
  std::string all(3, '\xff');
  all[2] = 15;
  EXPECT_EQ(Participants::FromBits(all, 20), Participants());
  EXPECT_TRUE(Participants::FromBits("", 20)->all());
}

TEST(ParticipantsTest, RefusesRanksThatTheJobDoesNotHave) {
  EXPECT_FALSE(Participants::FromBits(std::string(2, '\0'), 20)) << "nobody";
  EXPECT_FALSE(Participants::FromBits(std::string(2, '\0') + "\x10", 20)) << "rank 20";
  EXPECT_TRUE(Participants::FromBits(std::string(2, '\0') + "\x08", 20)) << "rank 19";
  EXPECT_FALSE(Participants::FromBits(std::string(8193, '\1'), uint64_t{1} << 20)) << "too long";
}

TEST(ParticipantsTest, RanksThatAJobDoesNotHaveAreNoSet) {
  EXPECT_FALSE(Participants::Of(std::vector<uint32_t>{20}, 20));
  EXPECT_FALSE(Participants::Of(std::vector<int32_t>{-1}, 20));
  EXPECT_FALSE(Participants::Of(std::vector<uint32_t>(), 20));
  EXPECT_FALSE(Participants::Of(std::vector<uint32_t>{1 << 16}, 1 << 17))
      << "too large to be named";
}

TEST(ParticipantsTest, CountsNodesAndTheirRanks) {
  const Participants some = Of({0, 3, 4, 15});
  EXPECT_EQ(some.RanksOf(NodeId(0), 5), 3u);
  EXPECT_EQ(some.RanksOf(NodeId(1), 5), 0u);
  EXPECT_FALSE(some.HasNode(NodeId(2), 5));
  EXPECT_TRUE(some.HasNode(NodeId(3), 5));
  EXPECT_EQ(some.CountNodes(4, 5), 2u);
  EXPECT_EQ(Participants().CountNodes(4, 5), 4u);
  EXPECT_EQ(Participants().RanksOf(NodeId(7), 5), 5u);
}

TEST(ParticipantsTest, UnionHasTheRanksOfBoth) {
  EXPECT_EQ(Of({0, 9}).UnitedWith(Of({1})), Of({0, 1, 9}));
  EXPECT_EQ(Of({1}).UnitedWith(Of({0, 9})), Of({0, 1, 9}));
  EXPECT_TRUE(Of({1}).UnitedWith(Participants()).all());
}

}  // namespace
}  // namespace addend
