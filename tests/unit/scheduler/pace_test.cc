#include "services/scheduler/pace.h"

#include <gtest/gtest.h>

namespace addend {
namespace {

constexpr ServerId kSlow(7);
const std::set<NodeId> kNodes = {NodeId(0), NodeId(1)};

// Windows of a second, in which each server is at work for both nodes for the given time.
class PaceTest : public testing::Test {
 protected:
  std::vector<Pace::Deviation> Window(double slow_s, double others_s, double passed_s = 1) {
    now_ += absl::Seconds(passed_s);
    for (const NodeId node : kNodes) {
      auto& served = served_[node];
      Add(&served[kSlow], slow_s);
      for (const uint32_t id : {1, 2, 3}) Add(&served[ServerId(id)], others_s);
      pace_.Report(now_, node, served);
    }
    return Evaluate();
  }
  static void Add(Pace::Service* service, double seconds) {
    service->seconds += seconds;
    service->times += 10;
  }
  std::vector<Pace::Deviation> Evaluate() {
    return pace_.Evaluate(now_, kNodes, weights_, reduced_)
        .value_or(std::vector<Pace::Deviation>());
  }
  // The trial included.
  int LevelWindowsBeforeATrial() {
    for (int i = 1; i < 1000; ++i) {
      if (const auto found = Window(0.5, 0.5); !found.empty()) return found[0].trial ? i : -1;
    }
    return -1;
  }
  void ItWasTooMuch() {
    Window(0.7, 0.5);
    EXPECT_FALSE(Window(0.7, 0.5).at(0).trial);
  }
  void SetUp() override { EXPECT_TRUE(Window(0.1, 0.1).empty()) << "nothing to compare with yet"; }

  Pace pace_;
  std::set<ServerId> reduced_;
  std::map<ServerId, double> weights_ = {
      {kSlow, 1}, {ServerId(1), 1}, {ServerId(2), 1}, {ServerId(3), 1}};
  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
  std::map<NodeId, std::map<ServerId, Pace::Service>> served_;
};

TEST_F(PaceTest, LevelTimesAreNoDeviation) {
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(Window(0.5, 0.4).empty());
}

TEST_F(PaceTest, SlowServerIsNamedAfterTwoWindows) {
  EXPECT_TRUE(Window(0.8, 0.2).empty()) << "once may be chance";
  const auto found = Window(0.8, 0.2);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].server, kSlow);
  EXPECT_NEAR(found[0].ratio, 4, 1e-9);
}

TEST_F(PaceTest, LevelWindowRestartsTheCount) {
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(Window(0.8, 0.2).empty());
    EXPECT_TRUE(Window(0.3, 0.3).empty());
  }
}

TEST_F(PaceTest, ReducedServerIsNamedWhenALittleSlow) {
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(Window(0.55, 0.5).empty());
  reduced_ = {kSlow};
  Window(0.55, 0.5);
  EXPECT_EQ(Window(0.55, 0.5).size(), 1u);
}

TEST_F(PaceTest, ReducedServerMayBeALittleFast) {
  reduced_ = {kSlow};
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Window(0.3, 0.5).empty());
  Window(0.2, 0.5);
  const auto found = Window(0.2, 0.5);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_FALSE(found[0].trial);
}

TEST_F(PaceTest, LevelReducedServerIsTriedWithMore) {
  reduced_ = {kSlow};
  for (int i = 1; i < Pace::kPatience; ++i) EXPECT_TRUE(Window(0.5, 0.5).empty());
  const auto found = Window(0.5, 0.5);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].server, kSlow);
  EXPECT_TRUE(found[0].trial);
}

TEST_F(PaceTest, TrialsThatAreTooMuchBecomeRare) {
  reduced_ = {kSlow};
  for (int patience = Pace::kPatience; patience <= 4 * Pace::kPatience; patience *= 2) {
    EXPECT_EQ(LevelWindowsBeforeATrial(), patience);
    ItWasTooMuch();
  }
}

TEST_F(PaceTest, SuccessfulTrialIsSoonFollowedByAnother) {
  reduced_ = {kSlow};
  for (int i = 0; i < 4; ++i) {
    LevelWindowsBeforeATrial();
    ItWasTooMuch();
  }
  EXPECT_GT(LevelWindowsBeforeATrial(), Pace::kPatience);
  EXPECT_EQ(LevelWindowsBeforeATrial(), Pace::kPatience);
}

TEST_F(PaceTest, ServerThatCountsInFullIsNotTried) {
  reduced_ = {kSlow};
  for (int i = 1; i < Pace::kPatience; ++i) EXPECT_TRUE(Window(0.5, 0.5).empty());
  reduced_.clear();
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(Window(0.5, 0.5).empty());
}

TEST_F(PaceTest, ServerThatHasCountedInFullIsTriedAsANewOne) {
  reduced_ = {kSlow};
  LevelWindowsBeforeATrial();
  ItWasTooMuch();
  reduced_.clear();
  EXPECT_TRUE(Window(0.5, 0.5).empty());
  reduced_ = {kSlow};
  EXPECT_EQ(LevelWindowsBeforeATrial(), Pace::kPatience);
}

TEST_F(PaceTest, FullServerIsNotSlowBecauseAReducedServerHasLittleToDo) {
  weights_ = {{ServerId(1), 1}, {kSlow, 1}};
  reduced_ = {kSlow};
  for (int i = 1; i < Pace::kPatience; ++i) EXPECT_TRUE(Window(0.3, 0.5).empty());
}

TEST_F(PaceTest, FastServerIsNamedToo) {
  Window(0.1, 0.4);
  const auto found = Window(0.1, 0.4);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_NEAR(found[0].ratio, 0.25, 1e-9);
}

TEST_F(PaceTest, TheSlowestIsNamedFirst) {
  weights_ = {{ServerId(1), 1},
              {kSlow, 1}};  // with a single other server, that server deviates as well
  Window(0.8, 0.2);
  const auto found = Window(0.8, 0.2);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].server, kSlow);
  EXPECT_EQ(found[1].server, ServerId(1));
}

TEST_F(PaceTest, LittleUsedServersAreNotNamed) {
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(Window(0.08, 0.01).empty()) << "8 % of the time";
}

TEST_F(PaceTest, WindowAfterAChangeDoesNotCount) {
  Window(0.8, 0.2);
  pace_.StartOver(now_);
  EXPECT_TRUE(Window(0.8, 0.2).empty()) << "settling";
  EXPECT_TRUE(Window(0.8, 0.2).empty());
  EXPECT_EQ(Window(0.8, 0.2).size(), 1u);
}

TEST_F(PaceTest, AllNodesHaveToReport) {
  for (int i = 0; i < 5; ++i) {
    now_ += absl::Seconds(1);
    Add(&served_[NodeId(0)][kSlow], 0.9);
    Add(&served_[NodeId(0)][ServerId(1)], 0.1);
    pace_.Report(now_, NodeId(0), served_[NodeId(0)]);
    EXPECT_TRUE(Evaluate().empty());
  }
}

TEST_F(PaceTest, RenewedLinkCountsFromZero) {
  Window(0.5, 0.5);
  for (const NodeId node : kNodes) served_[node][kSlow] = {};
  EXPECT_TRUE(Window(0.5, 0.5).empty());
  EXPECT_TRUE(Window(0.5, 0.5).empty());
}

TEST_F(PaceTest, ServerWithMoreThanItsShareMayTakeLonger) {
  weights_[kSlow] = 0.5;
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(Window(0.8, 0.4).empty());
  weights_.erase(kSlow);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(Window(0.8, 0.1).empty()) << "left out";
}

TEST_F(PaceTest, WindowLastsUntilEveryServerHasWorkedAFewTimes) {
  Window(0.8, 0.2);
  for (int i = 0; i < 5; ++i) {
    now_ += absl::Seconds(1);
    for (const NodeId node : kNodes) {
      for (auto& [server, service] : served_[node]) service.seconds += 0.5;
      pace_.Report(now_, node, served_[node]);
    }
    EXPECT_FALSE(pace_.Evaluate(now_, kNodes, weights_, reduced_).has_value())
        << "a round of many seconds";
  }
}

TEST_F(PaceTest, OnlyServerIsNotCompared) {
  Pace alone;
  Pace::Service served;
  for (int i = 0; i < 5; ++i) {
    now_ += absl::Seconds(1);
    Add(&served, 0.9);
    alone.Report(now_, NodeId(0), {{kSlow, served}});
    EXPECT_TRUE(alone.Evaluate(now_, {NodeId(0)}, weights_, reduced_)
                    .value_or(std::vector<Pace::Deviation>())
                    .empty());
  }
}

}  // namespace
}  // namespace addend
