#include "lib/network/slow_links.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace addend {
namespace {

constexpr double kGbit = 1e9;

// Links between all of six hosts in two groups: quick within, and half as quick across.
struct Network {
  Network() : groups{{{0, 0, 0, 1, 1, 1}}} {
    for (uint32_t a = 0; a < 6; ++a) {
      for (uint32_t b = a + 1; b < 6; ++b) {
        const bool within = groups.Shared(a, b) == 1;
        links.push_back({a, b, within ? 20e-6 : 60e-6, within ? 10 * kGbit : 5 * kGbit});
      }
    }
  }
  LinkFacts& Between(uint32_t a, uint32_t b) {
    for (LinkFacts& link : links) {
      if (link.a == a && link.b == b) return link;
    }
    ADD_FAILURE() << "no link";
    return links.front();
  }
  HostGroups groups;
  std::vector<LinkFacts> links;
};

TEST(FindSlowLinks, LinksToOtherGroupsAreNotSlow) {
  const Network network;
  EXPECT_TRUE(FindSlowLinks(network.groups, network.links).empty());
}

TEST(FindSlowLinks, ALinkWithLessThanHalfOfTheBandwidthIsSlow) {
  Network network;
  network.Between(1, 4).bandwidth_bps = 2 * kGbit;
  const std::vector<SlowLink> slow = FindSlowLinks(network.groups, network.links);
  ASSERT_EQ(slow.size(), 1);
  EXPECT_EQ(slow[0].a, 1);
  EXPECT_EQ(slow[0].b, 4);
  EXPECT_EQ(slow[0].measured.bandwidth_bps, 2 * kGbit);
  EXPECT_EQ(slow[0].typical.bandwidth_bps, 5 * kGbit);
}

TEST(FindSlowLinks, ALinkWithMoreThanTwiceTheLatencyIsSlow) {
  Network network;
  network.Between(0, 2).latency_s = 41e-6;
  ASSERT_EQ(FindSlowLinks(network.groups, network.links).size(), 1);
  network.Between(0, 2).latency_s = 39e-6;
  EXPECT_TRUE(FindSlowLinks(network.groups, network.links).empty());
}

TEST(FindSlowLinks, AHostWhoseLinksAreSlowIsNamedItself) {
  Network network;
  for (LinkFacts& link : network.links) {
    if (link.a == 5 || link.b == 5) link.bandwidth_bps = kGbit;
  }
  network.Between(0, 1).bandwidth_bps = 4 * kGbit;
  const std::vector<SlowLink> slow = FindSlowLinks(network.groups, network.links);
  ASSERT_EQ(slow.size(), 2);
  EXPECT_EQ(slow[0].a, 5);
  EXPECT_FALSE(slow[0].b.has_value());
  EXPECT_EQ(slow[0].measured.bandwidth_bps, kGbit);
  EXPECT_EQ(slow[1].b, 1);
}

TEST(FindSlowLinks, OfFewLinksNothingIsTypical) {
  const HostGroups groups{{{0, 0, 0}}};
  const std::vector<LinkFacts> links = {{0, 1, 1e-5, kGbit}, {0, 2, 1e-5, kGbit}, {1, 2, 1e-3, 1}};
  EXPECT_TRUE(FindSlowLinks(groups, links).empty());
}

TEST(FindSlowLinks, WhatIsNotMeasuredIsNotSlow) {
  Network network;
  network.Between(0, 1).bandwidth_bps = 0;
  network.Between(0, 1).latency_s = 0;
  EXPECT_TRUE(FindSlowLinks(network.groups, network.links).empty());
}

}  // namespace
}  // namespace addend
