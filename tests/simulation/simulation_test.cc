// The swarm itself: a run is a function of its seed, and the first seeds have no violation.
#include <gtest/gtest.h>
#include <spdlog/sinks/null_sink.h>
#include <spdlog/spdlog.h>

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
