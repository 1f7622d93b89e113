#include "services/scheduler/stragglers.h"

#include <gmock/gmock.h>

#include "tests/unit/scheduler/job_scope_fixture.h"

namespace addend {
namespace {

class StragglersTest : public JobScopeTest {
 protected:
  explicit StragglersTest(int64_t elements = 100000) {
    AddNodes(2);
    slow_ = AddServer().id;
    fast_ = AddServer().id;
    Published("w", elements);
  }
  // All nodes see the servers at work for these parts of the time.
  void Work(double slow, double fast, int events = 20) {
    for (int i = 0; i < events; ++i) {
      NextEvent();
      beat_.set_generation(1);
      beat_.clear_paces();
      for (const auto& [id, part] : {std::pair{slow_, slow}, std::pair{fast_, fast}}) {
        v1::ServerPace& pace = *beat_.add_paces();
        pace.set_server_id(id.value());
        pace.set_served_s(served_[id] += part);
        pace.set_services(services_ += 10);
      }
      for (const auto& [rank, node] : job_.nodes) TakePaces(now_, rank, beat_, &job_);
      Stragglers(scope()).Follow(react_);
    }
  }

  ServerId slow_, fast_;
  bool react_ = true;
  v1::HeartbeatRequest beat_;
  std::map<ServerId, double> served_;
  uint64_t services_ = 0;
};

TEST_F(StragglersTest, ServerThatIsAtWorkLongerCountsWithLess) {
  Work(0.9, 0.3);
  EXPECT_LT(job_.SpeedOf(slow_), 1);
  EXPECT_EQ(job_.SpeedOf(fast_), 1);
  EXPECT_EQ(job_.current.rebalance, PlanReason::kPace);
}

TEST_F(StragglersTest, NothingChangesWhenReactionIsSwitchedOff) {
  react_ = false;
  Work(0.9, 0.3);
  EXPECT_EQ(job_.SpeedOf(slow_), 1);
  EXPECT_FALSE(job_.current.rebalance.has_value());
}

TEST_F(StragglersTest, FastestServerThatIsLeftCountsInFull) {
  job_.speeds[slow_] = 0.5;
  fleet_.Remove(fast_);
  Stragglers(scope()).Follow(/*react=*/false);
  EXPECT_EQ(job_.SpeedOf(slow_), 1);
  EXPECT_EQ(job_.current.rebalance, PlanReason::kPace);
}

TEST_F(StragglersTest, SlowServerBesideAFullOneKeepsItsSpeed) {
  job_.speeds[slow_] = 0.5;
  Stragglers(scope()).Follow(/*react=*/false);
  EXPECT_EQ(job_.SpeedOf(slow_), 0.5);
  EXPECT_FALSE(job_.current.rebalance.has_value());
}

TEST_F(StragglersTest, SpeedsOfServersThatHaveGoneAreForgotten) {
  job_.speeds[slow_] = 0.5;
  job_.speeds[ServerId(99)] = 0.5;
  Stragglers(scope()).Follow(/*react=*/false);
  EXPECT_EQ(job_.speeds, (std::map<ServerId, double>{{slow_, 0.5}}));
}

TEST_F(StragglersTest, DrainingServerIsNotTheFastest) {
  job_.speeds[slow_] = 0.5;
  fleet_.Find(fast_)->draining = true;
  Stragglers(scope()).Follow(/*react=*/false);
  EXPECT_EQ(job_.SpeedOf(slow_), 1);
}

TEST_F(StragglersTest, PacesOfAnotherGenerationAreIgnored) {
  job_.current.number = Generation(2);
  Work(0.9, 0.3);
  EXPECT_EQ(job_.SpeedOf(slow_), 1);
}

TEST_F(StragglersTest, NothingIsMeasuredDuringAChange) {
  job_.current.change.version = PlanVersion(9);
  Work(0.9, 0.3);
  EXPECT_EQ(job_.SpeedOf(slow_), 1);
}

TEST_F(StragglersTest, ReducedServerThatIsNotSlowIsTriedWithMore) {
  job_.speeds[slow_] = 0.5;
  // It has as much as the other server so far: twice the share for which it counts.
  for (int i = 0; i < 20 && job_.SpeedOf(slow_) == 0.5; ++i) Work(0.6, 0.3, /*events=*/1);
  EXPECT_EQ(job_.SpeedOf(slow_), 0.75);
  ASSERT_EQ(history_.log.counts().at("planned"), 2u) << "the first plan, and the trial";
  EXPECT_THAT(history_.log.events().back().text(),
              testing::HasSubstr("counts with 75 % of its bandwidth on trial"));
}

TEST_F(StragglersTest, SlowServerIsNoted) {
  for (int i = 0; i < 20 && job_.SpeedOf(slow_) == 1; ++i) Work(0.9, 0.3, /*events=*/1);
  EXPECT_EQ(history_.log.counts().at("planned"), 2u);
  EXPECT_THAT(history_.log.events().back().text(),
              testing::HasSubstr("is at work for job 'a' 2.98 times as long as the others"));
}

// A partition on each server: none can move, whatever the speeds.
class CoarseStragglersTest : public StragglersTest {
 protected:
  CoarseStragglersTest() : StragglersTest(2048) {}
};

TEST_F(CoarseStragglersTest, SpeedsStayIfNothingWouldMove) {
  job_.speeds[slow_] = 0.7;
  for (int i = 0; i < 5; ++i) Work(0.6, 0.6);
  EXPECT_EQ(job_.speeds, (std::map<ServerId, double>{{slow_, 0.7}})) << "no trial";
  Work(0.6, 0.5);
  EXPECT_EQ(job_.SpeedOf(slow_), 0.7);
  EXPECT_FALSE(job_.current.rebalance.has_value());
  EXPECT_EQ(history_.log.counts().at("planned"), 1u) << "the first plan";
}

TEST_F(StragglersTest, ServersThatWorkAlikeCountInFull) {
  Work(0.6, 0.6);
  EXPECT_TRUE(job_.speeds.empty());
  EXPECT_FALSE(job_.current.rebalance.has_value());
}

TEST_F(StragglersTest, LowestSpeedOfAllJobsIsShown) {
  job_.speeds[slow_] = 0.5;
  jobs_.Create("b").speeds[slow_] = 0.25;
  EXPECT_EQ(LowestSpeeds(jobs_), (std::map<ServerId, double>{{slow_, 0.25}}));
}

}  // namespace
}  // namespace addend
