#include "lib/network/groups.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "lib/network/probe_choice.h"
#include "tests/unit/network/made_network.h"

namespace addend {
namespace {

std::vector<double> CostsOf(size_t hosts, double most_us, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> cost(0, most_us);
  std::vector<double> costs(hosts);
  for (double& one : costs) one = cost(random);
  return costs;
}

MadeNetwork Racks(const std::vector<uint32_t>& sizes, uint64_t seed, double cost_us = 1) {
  MadeNetwork network;
  network.groups = {Shuffled(sizes, seed)};
  network.cost_us = CostsOf(network.groups[0].size(), cost_us, seed);
  network.round_trips = {20, 15};
  return network;
}

TEST(FindGroups, RacksOfOneSizeAreFoundInAnyOrder) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const MadeNetwork network = Racks({4, 4, 4, 4}, seed);
    const HostGroups groups = FindGroups(16, Measure(network, /*wait_us=*/4, seed));
    ASSERT_EQ(groups.levels.size(), 1);
    EXPECT_EQ(AdjustedRandIndex(groups.levels[0], network.groups[0]), 1);
  }
}

TEST(FindGroups, RacksOfAnySizesAreFound) {
  const std::vector<std::vector<uint32_t>> layouts = {
      {12, 4}, {3, 5}, {1, 7, 8}, {1, 4, 6}, {2, 3, 5, 8, 13}, {32, 32}, {8, 8, 8}};
  for (size_t i = 0; i < layouts.size(); ++i) {
    for (uint64_t seed = 1; seed <= 10; ++seed) {
      SCOPED_TRACE("layout " + std::to_string(i) + ", seed " + std::to_string(seed));
      const MadeNetwork network = Racks(layouts[i], seed);
      const auto hosts = static_cast<uint32_t>(network.cost_us.size());
      const HostGroups groups = FindGroups(hosts, Measure(network, /*wait_us=*/2, seed));
      ASSERT_EQ(groups.levels.size(), 1);
      EXPECT_EQ(AdjustedRandIndex(groups.levels[0], network.groups[0]), 1);
    }
  }
}

TEST(FindGroups, SlowHostsAreNoGroupOfTheirOwn) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    MadeNetwork network = Racks({6, 6, 6}, seed);
    network.cost_us[3] = 25;
    network.cost_us[11] = 12;
    const HostGroups groups = FindGroups(18, Measure(network, /*wait_us=*/2, seed));
    ASSERT_EQ(groups.levels.size(), 1);
    EXPECT_EQ(AdjustedRandIndex(groups.levels[0], network.groups[0]), 1);
  }
}

TEST(FindGroups, AnEvenNetworkHasNone) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto hosts = static_cast<uint32_t>(2 + seed % 40);
    MadeNetwork network;
    network.groups = {std::vector<uint32_t>(hosts, 0)};
    network.cost_us = CostsOf(hosts, /*most_us=*/20, seed);
    network.round_trips = {20, 20};
    EXPECT_TRUE(FindGroups(hosts, Measure(network, /*wait_us=*/5, seed)).levels.empty());
  }
}

TEST(FindGroups, RacksWithinZonesAreTwoLevels) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    MadeNetwork network;
    const std::vector<uint32_t> racks = Shuffled({8, 8, 8, 8, 4, 4}, seed);
    std::vector<uint32_t> zones;
    for (const uint32_t rack : racks) zones.push_back(rack / 2);
    network.groups = {zones, racks};
    network.cost_us = CostsOf(racks.size(), /*most_us=*/3, seed);
    network.round_trips = {600, 40, 25};
    const HostGroups groups = FindGroups(40, Measure(network, /*wait_us=*/5, seed));
    ASSERT_EQ(groups.levels.size(), 2);
    EXPECT_EQ(AdjustedRandIndex(groups.levels[0], zones), 1);
    EXPECT_EQ(AdjustedRandIndex(groups.levels[1], racks), 1);
  }
}

TEST(FindGroups, NothingIsFoundInNothing) {
  EXPECT_TRUE(FindGroups(0, {}).levels.empty());
  EXPECT_TRUE(FindGroups(5, {}).levels.empty());
  const std::vector<PairLatency> one = {{0, 1, 1e-5, 1e-5}};
  EXPECT_TRUE(FindGroups(3, one).levels.empty());
}

TEST(FindGroups, OneSetOfProbesConfirmsNothing) {
  std::vector<PairLatency> pairs = Measure(Racks({4, 4, 4, 4}, 1), /*wait_us=*/1, 1);
  for (PairLatency& pair : pairs) pair.second_s = 0;
  EXPECT_TRUE(FindGroups(16, pairs).levels.empty());
}

// Each measures about 110 others as ChooseProbes() says.
TEST(FindGroups, SixteenRacksOfThirtyTwoHostsAreFoundByAFewProbesOfEach) {
  constexpr uint32_t kHosts = 512;
  const MadeNetwork network = Racks(std::vector<uint32_t>(16, 32), /*seed=*/7);
  std::mt19937_64 random(7);
  KnownDistances near(kHosts);
  std::vector<PairLatency> pairs;
  for (int round = 0; round < 14; ++round) {
    for (uint32_t host = 0; host < kHosts; ++host) {
      for (const uint32_t to : ChooseProbes(host, near, /*count=*/8, &random)) {
        const double us = network.RoundTrip(host, to);
        const PairLatency pair = {std::min(host, to), std::max(host, to),
                                  LeastOfProbes(us, 3, &random) * 1e-6,
                                  LeastOfProbes(us, 3, &random) * 1e-6};
        pairs.push_back(pair);
        const double least = std::min(pair.first_s, pair.second_s);
        Know(host, to, least, round, &near);
      }
    }
  }
  const HostGroups groups = FindGroups(kHosts, pairs);
  ASSERT_EQ(groups.levels.size(), 1);
  EXPECT_EQ(AdjustedRandIndex(groups.levels[0], network.groups[0]), 1);
}

}  // namespace
}  // namespace addend
