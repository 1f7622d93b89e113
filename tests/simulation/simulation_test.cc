// The swarm itself: a run is a function of its seed, and the first seeds have no violation.
#include <gtest/gtest.h>
#include <spdlog/sinks/null_sink.h>
#include <spdlog/spdlog.h>

#include <utility>

#include "tests/simulation/swarm.h"

namespace addend::simulation {
namespace {

class SwarmTest : public testing::Test {
 protected:
  SwarmTest() {
    spdlog::set_default_logger(
        std::make_shared<spdlog::logger>("", std::make_shared<spdlog::sinks::null_sink_mt>()));
  }
};

TEST_F(SwarmTest, ASeedGivesTheSameEvents) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const Outcome first = Play(Draw(seed), /*trace=*/false);
    const Outcome second = Play(Draw(seed), /*trace=*/false);
    EXPECT_EQ(first.trace_hash, second.trace_hash) << "seed " << seed;
    EXPECT_EQ(first.events, second.events) << "seed " << seed;
  }
}

TEST_F(SwarmTest, FirstSeedsHaveNoViolation) {
  uint64_t results = 0;
  for (uint64_t seed = 1; seed <= 25; ++seed) {
    const Outcome outcome = Play(Draw(seed), /*trace=*/false);
    EXPECT_EQ(outcome.violation, "") << "seed " << seed;
    results += outcome.results;
  }
  EXPECT_GT(results, 5'000u);
}

// The tree has two levels of sums here, and three from 65 nodes on. A loss ends relays.
TEST_F(SwarmTest, LargeJobsInRacksHaveNoViolation) {
  constexpr std::pair<uint32_t, uint32_t> kRacks[] = {{9, 8}, {17, 5}, {64, 16}, {100, 33}};
  uint64_t relayed = 0;
  for (const auto& [nodes, rack_nodes] : kRacks) {
    const Schedule schedule = Draw(/*seed=*/4, {.nodes = nodes, .rack_nodes = rack_nodes});
    const Outcome outcome = Play(schedule, /*trace=*/false);
    EXPECT_EQ(outcome.violation, "") << Describe(schedule);
    relayed += outcome.relayed;
  }
  EXPECT_GT(relayed, 5'000u);
}

// Without a fault no generation fails, whatever the topology.
TEST_F(SwarmTest, ClusterWithoutFaultsHasNoViolation) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    Schedule schedule = Draw(seed);
    schedule.faults.clear();
    EXPECT_EQ(Play(schedule, /*trace=*/false).violation, "") << "seed " << seed;
  }
}

}  // namespace
}  // namespace addend::simulation
