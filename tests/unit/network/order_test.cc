#include "lib/network/order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace addend {
namespace {

using Order = std::vector<uint32_t>;

TEST(NeighbourOrder, WithoutGroupsAllStay) {
  EXPECT_EQ(NeighbourOrder(4, {}), (Order{0, 1, 2, 3}));
}

TEST(NeighbourOrder, GroupsStandTogetherInTheOrderOfTheirFirstHosts) {
  const HostGroups groups{{{0, 1, 0, 2, 1, 0}}};
  EXPECT_EQ(NeighbourOrder(6, groups), (Order{0, 2, 5, 1, 4, 3}));
}

TEST(NeighbourOrder, GroupsStandTogetherWithinTheirGroup) {
  const HostGroups groups{{{0, 1, 0, 1, 0, 1}, {0, 1, 2, 3, 0, 1}}};
  EXPECT_EQ(NeighbourOrder(6, groups), (Order{0, 4, 2, 1, 5, 3}));
}

TEST(NeighbourOrder, GroupsThatAreWholeBranchesOfTheTreeComeFirst) {
  // Groups of 3, 64 and 8 hosts.
  Order of_host(3, 0);
  of_host.insert(of_host.end(), 8, 1);
  of_host.insert(of_host.end(), 64, 2);
  const Order order = NeighbourOrder(75, {{of_host}});
  EXPECT_EQ(order[0], 11);  // of the 64
  EXPECT_EQ(order[64], 3);  // of the 8
  EXPECT_EQ(order[72], 0);  // of the 3
}

TEST(NeighbourOrder, EveryHostIsThereOnce) {
  const HostGroups groups{{{0, 1, 2, 0, 1, 2, 0}}};
  Order order = NeighbourOrder(7, groups);
  std::sort(order.begin(), order.end());
  Order all(7);
  std::iota(all.begin(), all.end(), 0U);
  EXPECT_EQ(order, all);
}

}  // namespace
}  // namespace addend
