// Groups of GPUs on a node.
#include "services/worker_agent/device_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

namespace addend {
namespace {

using ::testing::ElementsAre;

Layout Groups(std::vector<std::vector<uint32_t>> groups, bool scatter,
              std::vector<uint32_t> roots = {}) {
  Layout layout;
  layout.groups = std::move(groups);
  layout.scatter = scatter;
  layout.roots = std::move(roots);
  return layout;
}

TEST(DeviceGroupsTest, AllHaveJoinedWhenEveryRankHasNamedItsGpu) {
  DeviceGroups groups(2);
  EXPECT_FALSE(groups.AnyJoined());
  ASSERT_TRUE(groups.Join(1, "0000:02:00.0").ok());
  EXPECT_TRUE(groups.AnyJoined());
  EXPECT_FALSE(groups.AllJoined());
  EXPECT_THAT(groups.Missing(), ElementsAre(0));
  EXPECT_FALSE(groups.Join(0, "").ok()) << "it names none";
  EXPECT_EQ(groups.Join(1, "0000:02:00.0").code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(groups.Join(0, "0000:01:00.0").ok());
  EXPECT_TRUE(groups.AllJoined());
}

TEST(DeviceGroupsTest, RankIsItsOwnGroupBeforeTheLayoutIsDecided) {
  const DeviceGroups groups(4);
  EXPECT_THAT(groups.MembersOf(3), ElementsAre(3));
  EXPECT_EQ(groups.LeadOf(3), 3u);
  EXPECT_FALSE(groups.decided());
  const ipc::Group group = groups.GroupOf(3);
  EXPECT_EQ(group.members, 1u);
  EXPECT_EQ(group.member, 0u);
  EXPECT_FALSE(group.scatter);
  EXPECT_EQ(group.num_roots, 1u);
}

TEST(DeviceGroupsTest, MembersWriteToTheFirstMembersSegment) {
  DeviceGroups groups(4);
  ASSERT_TRUE(groups.Decide(Groups({{0, 2}, {1, 3}}, true)).ok());
  EXPECT_EQ(groups.LeadOf(2), 0u);
  EXPECT_EQ(groups.LeadOf(3), 1u);
  const ipc::Group group = groups.GroupOf(3);
  EXPECT_EQ(group.members, 2u);
  EXPECT_EQ(group.member, 1u);
  EXPECT_TRUE(group.scatter);
}

TEST(DeviceGroupsTest, RootsAreMembersOfTheGroup) {
  DeviceGroups groups(4);
  ASSERT_TRUE(groups.Decide(Groups({{0, 1, 2, 3}}, false, {2, 3})).ok());
  const ipc::Group group = groups.GroupOf(0);
  EXPECT_FALSE(group.scatter);
  ASSERT_EQ(group.num_roots, 2u);
  EXPECT_EQ(group.roots[0], 2u);
  EXPECT_EQ(group.roots[1], 3u);
}

TEST(DeviceGroupsTest, GroupOfASingleRankIsItsOwnRoot) {
  DeviceGroups groups(2);
  ASSERT_TRUE(groups.Decide(Groups({{0}, {1}}, true)).ok());
  const ipc::Group group = groups.GroupOf(1);
  EXPECT_FALSE(group.scatter);
  EXPECT_EQ(group.num_roots, 1u);
  EXPECT_EQ(group.roots[0], 0u);
}

TEST(DeviceGroupsTest, GroupMayHaveAsManyGpusAsTheLibraryTakes) {
  DeviceGroups groups(ipc::kMaxGroup);
  std::vector<uint32_t> all(ipc::kMaxGroup);
  for (uint32_t rank = 0; rank < all.size(); ++rank) all[rank] = rank;
  ASSERT_TRUE(groups.Decide(Groups({all}, true)).ok());
  EXPECT_TRUE(groups.decided());
  EXPECT_EQ(groups.MembersOf(5), all);
}

TEST(DeviceGroupsTest, LayoutWithoutARankOrWithTooLargeAGroupIsRefused) {
  DeviceGroups groups(65);
  EXPECT_FALSE(groups.Decide(Groups({{0, 1}}, true)).ok());
  std::vector<uint32_t> all(65);
  for (uint32_t rank = 0; rank < all.size(); ++rank) all[rank] = rank;
  const absl::Status status = groups.Decide(Groups({all}, true));
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("--intranode=copy"));
}

}  // namespace
}  // namespace addend
