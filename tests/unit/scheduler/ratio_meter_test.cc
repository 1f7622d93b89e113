#include "services/scheduler/ratio_meter.h"

#include <gtest/gtest.h>

#include <limits>

namespace addend {
namespace {

constexpr uint64_t kRound = 1'000'000;  // of all nodes together
const std::set<NodeId> kAll = {NodeId(0), NodeId(1)};

class RatioMeterTest : public testing::Test {
 protected:
  // Every node sends and receives payloads of these ratios.
  void Report(double contributions, double results, uint64_t bytes = 10 * kRound) {
    for (const NodeId node : kAll) {
      RatioMeter::Counters& counters = counters_[node];
      counters.contribution_bytes += bytes;
      counters.contribution_wire_bytes += Part(bytes, contributions);
      counters.result_bytes += bytes;
      counters.result_wire_bytes += Part(bytes, results);
      meter_.Report(node, counters);
    }
  }
  std::optional<WireRatios> Window(double contributions, double results,
                                   uint64_t bytes = 10 * kRound) {
    Report(contributions, results, bytes);
    return Evaluate();
  }
  std::optional<WireRatios> Evaluate() { return meter_.Evaluate(kAll, kRound); }
  void SetUp() override {
    EXPECT_FALSE(meter_.HasNews());
    Window(1, 1, 0);  // counters that the agents bring along
    EXPECT_FALSE(meter_.HasNews());
  }
  static uint64_t Part(uint64_t bytes, double ratio) {
    return static_cast<uint64_t>(static_cast<double>(bytes) * ratio);
  }

  RatioMeter meter_;
  std::map<NodeId, RatioMeter::Counters> counters_;
};

TEST_F(RatioMeterTest, TwoWindowsThatAgreeGiveRoundedRatios) {
  Report(0.5012, 0.9);
  EXPECT_TRUE(meter_.HasNews());
  EXPECT_FALSE(Evaluate()) << "once may be chance";
  EXPECT_FALSE(meter_.settled());
  EXPECT_EQ(meter_.planned(), WireRatios());
  EXPECT_EQ(Window(0.5071, 0.894), (WireRatios{0.5, 0.9}));
  EXPECT_TRUE(meter_.settled());
  EXPECT_EQ(meter_.planned(), (WireRatios{0.5, 0.9}));
}

TEST_F(RatioMeterTest, RawPayloadsSettleWithoutAChange) {
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(Window(1, 1));
  EXPECT_TRUE(meter_.settled());
  EXPECT_EQ(meter_.planned(), WireRatios());
}

TEST_F(RatioMeterTest, WindowsThatDifferSettleNothing) {
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(Window(0.5, 1));
    EXPECT_FALSE(Window(0.54, 1));
    EXPECT_FALSE(Window(0.5, 0.9));
  }
  EXPECT_FALSE(meter_.settled());
}

TEST_F(RatioMeterTest, NoiseNeverGivesANewValue) {
  Window(0.5, 1);
  ASSERT_TRUE(Window(0.5, 1));
  for (int i = 0; i < 200; ++i) EXPECT_FALSE(Window(0.5 + 0.0004 * (i % 100), 0.95)) << i;
  EXPECT_EQ(meter_.planned(), (WireRatios{0.5, 1}));
}

TEST_F(RatioMeterTest, JobThatKeepsChangingIsPlannedAnewEverMoreRarely) {
  int changes = 0;
  for (int phase = 0; phase < 64; ++phase) {
    const double ratio = phase % 2 == 0 ? 0.3 : 0.9;
    for (int i = 0; i < 6; ++i) changes += Window(ratio, 1).has_value();
  }
  EXPECT_GE(changes, 2);
  EXPECT_LE(changes, 4) << "6 windows are too few after the third change";
  int windows = 1;
  while (!Window(0.05, 1) && windows < 1000) ++windows;
  EXPECT_LE(windows, RatioMeter::kMostPatience + 2) << "a value that stays is planned with";
}

TEST_F(RatioMeterTest, WindowHasTheBytesOfAFewRoundsAndAReportOfEveryNode) {
  EXPECT_FALSE(Window(0.5, 1, kRound));
  EXPECT_FALSE(Window(0.5, 1, kRound / 2)) << "three rounds: the first window";
  meter_.Report(NodeId(0), counters_[NodeId(0)]);
  EXPECT_FALSE(meter_.Evaluate({NodeId(0), NodeId(7)}, 0)) << "node 7 has reported nothing";
  EXPECT_FALSE(Window(0.5, 1, kRound));
  EXPECT_TRUE(Window(0.5, 1, kRound)) << "the second window";
}

TEST_F(RatioMeterTest, RestartedAgentBeginsAt0) {
  Window(0.5, 1);
  counters_[NodeId(1)] = {};
  meter_.Report(NodeId(1), counters_[NodeId(1)]);
  EXPECT_FALSE(Evaluate()) << "nothing is known of node 1 in this window";
  EXPECT_EQ(Window(0.5, 1), (WireRatios{0.5, 1}));
}

TEST_F(RatioMeterTest, PayloadsOfADirectionThatIsNotUsedAreRaw) {
  for (int i = 0; i < 2; ++i) {
    for (const NodeId node : kAll) {
      counters_[node].contribution_bytes += 10 * kRound;
      counters_[node].contribution_wire_bytes += 2 * kRound;
      meter_.Report(node, counters_[node]);
    }
    Evaluate();
  }
  EXPECT_EQ(meter_.planned(), (WireRatios{0.2, 1}));
}

TEST_F(RatioMeterTest, ImpossibleRatiosAreClamped) {
  Window(1.5, 0);
  EXPECT_EQ(Window(1.5, 0), (WireRatios{1, RatioMeter::kLeastRatio}));
}

TEST_F(RatioMeterTest, CountersAtTheirEndOverflowNothing) {
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  Window(0.5, 1);
  counters_[NodeId(1)] = {kMost, kMost, kMost, kMost};
  Window(0.5, 1, 0);
  EXPECT_EQ(meter_.planned(), WireRatios());
  counters_[NodeId(1)] = {};
  Window(0.5, 1, 0);
  EXPECT_EQ(Window(0.5, 1), (WireRatios{0.5, 1}));
}

TEST_F(RatioMeterTest, CountersThatGrowBeyondMeasureAddNothing) {
  Window(0.5, 1);
  counters_[NodeId(1)].contribution_bytes += RatioMeter::kMostGrowth + 1;
  meter_.Report(NodeId(1), counters_[NodeId(1)]);
  EXPECT_EQ(Window(0.5, 1), (WireRatios{0.5, 1}));
}

TEST_F(RatioMeterTest, VerySmallRatiosCountAsTheLeast) {
  Window(0.00001, 0.01234);
  EXPECT_EQ(Window(0.00001, 0.01234), (WireRatios{RatioMeter::kLeastRatio, 0.012}));
}

TEST_F(RatioMeterTest, WithoutPayloadsNothingIsMeasured) {
  for (int i = 0; i < 5; ++i) {
    Report(1, 1, 0);
    EXPECT_FALSE(meter_.Evaluate(kAll, 0));
  }
  EXPECT_FALSE(meter_.settled());
}

}  // namespace
}  // namespace addend
