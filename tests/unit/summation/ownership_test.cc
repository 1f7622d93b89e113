#include "lib/summation/ownership.h"

#include <gtest/gtest.h>

namespace addend {
namespace {

using State = Ownership::State;

TEST(OwnershipTest, TheFirstOwnerIsOpenFromTheStart) {
  const Ownership first(3, PlanVersion());
  EXPECT_EQ(first.state(), State::kOpen);
  EXPECT_FALSE(first.AnyLacks());
}

TEST(OwnershipTest, ALaterOwnerOpensWithTheLastReport) {
  Ownership owner(3, PlanVersion(7));
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

TEST(OwnershipTest, NobodyLacksAnythingWhenAllHoldTheSame) {
  Ownership owner(2, PlanVersion(1));
  owner.OnReport(NodeId(0), Round(0));
  EXPECT_TRUE(owner.OnReport(NodeId(1), Round(0)));
  EXPECT_EQ(owner.newest(), Round(0));
  EXPECT_FALSE(owner.AnyLacks());
}

TEST(OwnershipTest, ANewerVersionStartsOverAndAnOldOneIsOldNews) {
  Ownership owner(2, PlanVersion(3));
  owner.OnReport(NodeId(0), Round(9));
  EXPECT_FALSE(owner.Recover(PlanVersion(3)));
  EXPECT_FALSE(owner.Recover(PlanVersion(2)));
  EXPECT_TRUE(owner.Recover(PlanVersion(4)));
  EXPECT_EQ(owner.version(), PlanVersion(4));
  EXPECT_FALSE(owner.OnReport(NodeId(1), Round(9))) << "node 0 has to say it again";
  EXPECT_TRUE(owner.OnReport(NodeId(0), Round(9)));
}

}  // namespace
}  // namespace addend
