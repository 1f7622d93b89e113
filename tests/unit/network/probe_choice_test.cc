#include "lib/network/probe_choice.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <set>
#include <vector>

#include "tests/unit/network/made_network.h"

namespace addend {
namespace {

std::set<uint32_t> SetOf(const std::vector<uint32_t>& hosts) {
  return {hosts.begin(), hosts.end()};
}

TEST(ChooseProbes, OthersAreChosenOnceEach) {
  std::mt19937_64 random(1);
  for (uint32_t hosts = 1; hosts <= 12; ++hosts) {
    const std::vector<uint32_t> chosen = ChooseProbes(0, KnownDistances(hosts), 8, &random);
    EXPECT_EQ(SetOf(chosen).size(), chosen.size());
    EXPECT_EQ(SetOf(chosen).count(0), 0);
    EXPECT_LE(chosen.size(), 8);
    EXPECT_EQ(chosen.empty(), hosts == 1);
  }
}

TEST(ChooseProbes, NeighboursOfNeighboursAreHalf) {
  std::mt19937_64 random(1);
  KnownDistances near(200);
  Know(0, 1, 1e-5, 0, &near);
  for (uint32_t other = 10; other < 20; ++other) Know(1, other, 1e-5, 0, &near);
  const std::vector<uint32_t> chosen = ChooseProbes(0, near, 8, &random);
  ASSERT_EQ(chosen.size(), 8);
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(chosen[i] >= 10 && chosen[i] < 20) << chosen[i];
}

TEST(ChooseProbes, WhereAllAreKnownTheOldestAreMeasuredAgain) {
  std::mt19937_64 random(1);
  KnownDistances near(6);
  for (uint32_t other = 1; other < 6; ++other) Know(0, other, 1e-5, 10 - other, &near);
  EXPECT_EQ(ChooseProbes(0, near, 2, &random), (std::vector<uint32_t>{5, 4}));
}

// 0 knows that 1 is far, and 1 that 2 to 99 are near: those are as far as 1.
TEST(ChooseProbes, NoHostIsTriedWhoseNeighbourIsKnownToBeFar) {
  std::mt19937_64 random(1);
  KnownDistances near(200);
  Know(0, 1, 2e-5, 0, &near);
  for (uint32_t other = 2; other < 18; ++other) {
    for (uint32_t neighbour = 1; neighbour < other; ++neighbour) {
      Know(neighbour, other, 1e-5, 0, &near);
    }
  }
  const std::vector<uint32_t> chosen = ChooseProbes(0, near, 8, &random);
  ASSERT_EQ(chosen.size(), 8);
  for (size_t i = 4; i < 8; ++i) EXPECT_GE(chosen[i], 18);
}

}  // namespace
}  // namespace addend
