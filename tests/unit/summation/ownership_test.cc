// The transitions of a partition's ownership.
#include "lib/summation/ownership.h"

#include <gtest/gtest.h>

namespace addend {
namespace {

using State = Ownership::State;

TEST(OwnershipTest, FirstOwnerIsOpenFromTheStart) {
  const Ownership first(3, PlanVersion(), /*handed_over=*/false);
  EXPECT_EQ(first.state(), State::kOpen);
  EXPECT_FALSE(first.AnyLacks());
}

TEST(OwnershipTest, LaterOwnerOpensWithTheLastReport) {
  Ownership owner(3, PlanVersion(7), /*handed_over=*/false);
  EXPECT_EQ(owner.state(), State::kRecovering);
  EXPECT_FALSE(owner.OnReport(NodeId(2), Round(5)));
  EXPECT_FALSE(owner.OnReport(NodeId(2), Round(5))) << "the same node again";
  EXPECT_FALSE(owner.OnReport(NodeId(0), Round(4)));
  EXPECT_EQ(owner.state(), State::kRecovering);
  EXPECT_TRUE(owner.OnReport(NodeId(1), Round(4)));
  EXPECT_EQ(owner.state(), State::kOpen);
  EXPECT_EQ(owner.newest(), Round(5));
  EXPECT_TRUE(owner.Lacks(NodeId(0)));
  EXPECT_TRUE(owner.Lacks(NodeId(1)));
  EXPECT_FALSE(owner.Lacks(NodeId(2)));
  EXPECT_EQ(owner.Holder(), NodeId(2));
  owner.Supplied();
  EXPECT_FALSE(owner.AnyLacks());
}

TEST(OwnershipTest, ReportThatIsNotAwaitedEndsNothing) {
  Ownership owner(2, PlanVersion(1), /*handed_over=*/false);
  EXPECT_FALSE(owner.Lose(NodeId(0)));
  EXPECT_FALSE(owner.OnReport(NodeId(0), Round(5))) << "of a lost node";
  EXPECT_TRUE(owner.OnReport(NodeId(1), Round(4)));
  EXPECT_FALSE(owner.OnReport(NodeId(1), Round(4))) << "the recovery is over";
  EXPECT_EQ(owner.newest(), Round(4));
}

TEST(OwnershipTest, NoNodeLacksAResultIfAllReportTheSameRound) {
  Ownership owner(2, PlanVersion(1), /*handed_over=*/false);
  owner.OnReport(NodeId(0), Round(0));
  EXPECT_TRUE(owner.OnReport(NodeId(1), Round(0)));
  EXPECT_EQ(owner.newest(), Round(0));
  EXPECT_FALSE(owner.AnyLacks());
}

TEST(OwnershipTest, NewerVersionStartsOverAndAnOldVersionHasNoEffect) {
  Ownership owner(2, PlanVersion(3), /*handed_over=*/false);
  owner.OnReport(NodeId(0), Round(9));
  EXPECT_FALSE(owner.TakeOver(PlanVersion(3), /*handed_over=*/false));
  EXPECT_FALSE(owner.TakeOver(PlanVersion(2), /*handed_over=*/false));
  EXPECT_TRUE(owner.TakeOver(PlanVersion(4), /*handed_over=*/false));
  EXPECT_EQ(owner.version(), PlanVersion(4));
  EXPECT_FALSE(owner.OnReport(NodeId(1), Round(9))) << "node 0 has to say it again";
  EXPECT_TRUE(owner.OnReport(NodeId(0), Round(9)));
}

TEST(OwnershipTest, OwnerClosesBetweenTwoRounds) {
  Ownership owner(2, PlanVersion(), /*handed_over=*/false);
  EXPECT_FALSE(owner.CloseIfDue(/*between_rounds=*/true)) << "nobody has asked for it";
  EXPECT_TRUE(owner.HandOver(PlanVersion(4)));
  EXPECT_EQ(owner.state(), State::kClosing);
  EXPECT_TRUE(owner.Sums()) << "the round that has begun is finished here";
  EXPECT_FALSE(owner.CloseIfDue(/*between_rounds=*/false));
  EXPECT_TRUE(owner.CloseIfDue(/*between_rounds=*/true));
  EXPECT_EQ(owner.state(), State::kClosed);
  EXPECT_FALSE(owner.Sums());
  EXPECT_EQ(owner.next_version(), PlanVersion(4));
  EXPECT_FALSE(owner.HandOver(PlanVersion(4))) << "repeated by a scheduler that was started anew";
}

TEST(OwnershipTest, HandOverWaitsForTheEndOfARecovery) {
  Ownership owner(2, PlanVersion(3), /*handed_over=*/false);
  EXPECT_TRUE(owner.HandOver(PlanVersion(5)));
  EXPECT_EQ(owner.state(), State::kRecovering);
  EXPECT_FALSE(owner.CloseIfDue(true));
  owner.OnReport(NodeId(0), Round(7));
  EXPECT_TRUE(owner.OnReport(NodeId(1), Round(6)));
  EXPECT_EQ(owner.state(), State::kClosing);
  EXPECT_FALSE(owner.CloseIfDue(true)) << "node 1 lacks round 7";
  owner.Supplied();
  EXPECT_TRUE(owner.CloseIfDue(true));
}

TEST(OwnershipTest, RecoveryUndoesAHandOver) {
  Ownership owner(1, PlanVersion(), /*handed_over=*/false);
  owner.HandOver(PlanVersion(4));
  owner.CloseIfDue(true);
  EXPECT_TRUE(owner.TakeOver(PlanVersion(5), /*handed_over=*/false)) << "the next owner is lost";
  EXPECT_TRUE(owner.OnReport(NodeId(0), Round(2)));
  EXPECT_EQ(owner.state(), State::kOpen);
}

TEST(OwnershipTest, PartitionThatWasHandedOverIsOpenAtOnce) {
  EXPECT_EQ(Ownership(2, PlanVersion(3), /*handed_over=*/true).state(), State::kOpen);
  Ownership again(2, PlanVersion(3), /*handed_over=*/true);
  again.HandOver(PlanVersion(4));
  again.CloseIfDue(true);
  EXPECT_TRUE(again.TakeOver(PlanVersion(5), /*handed_over=*/true));
  EXPECT_EQ(again.state(), State::kOpen);
}

TEST(OwnershipTest, ReportOfALostNodeIsNeitherRequiredNorCounted) {
  Ownership owner(3, PlanVersion(7), /*handed_over=*/false);
  owner.OnReport(NodeId(0), Round(4));
  owner.OnReport(NodeId(2), Round(5));
  EXPECT_FALSE(owner.Lose(NodeId(2))) << "node 1 is missing";
  EXPECT_TRUE(owner.OnReport(NodeId(1), Round(4)));
  EXPECT_EQ(owner.newest(), Round(4)) << "nobody who is left holds round 5";
  EXPECT_FALSE(owner.AnyLacks());

  Ownership last(2, PlanVersion(7), /*handed_over=*/false);
  last.OnReport(NodeId(0), Round(4));
  EXPECT_TRUE(last.Lose(NodeId(1)));
  EXPECT_EQ(last.state(), State::kOpen);
}

TEST(OwnershipTest, NewestRoundOpensAgainWhenItsOnlyHolderIsLost) {
  Ownership owner(3, PlanVersion(7), /*handed_over=*/false);
  owner.OnReport(NodeId(0), Round(4));
  owner.OnReport(NodeId(1), Round(4));
  owner.OnReport(NodeId(2), Round(5));
  EXPECT_FALSE(owner.Lose(NodeId(2)));
  EXPECT_FALSE(owner.Holder().has_value());
  EXPECT_TRUE(owner.AnyLacks());
  owner.GoBack();
  EXPECT_EQ(owner.newest(), Round(4));
  EXPECT_FALSE(owner.AnyLacks());
}

}  // namespace
}  // namespace addend
