#include "services/scheduler/encodings.h"

#include <gmock/gmock.h>

#include "services/scheduler/handover.h"
#include "services/scheduler/job_servers.h"
#include "tests/unit/scheduler/job_scope_fixture.h"

namespace addend {
namespace {

using testing::HasSubstr;

// Four nodes without colocated servers, and two CPU servers.
class EncodingsTest : public JobScopeTest {
 protected:
  EncodingsTest() {
    AddNodes(4);
    AddServer();
    AddServer();
    Published("w", 100'000);
  }
  // All nodes send and receive payloads of these ratios, for as long as it takes to settle.
  void Measure(double contributions, double results, int heartbeats = 5) {
    constexpr double kBytes = 10e6;
    for (int i = 0; i < heartbeats; ++i) {
      NextEvent();
      v1::WireBytes& bytes = *beat_.mutable_wire_bytes();
      const auto grown = [](uint64_t counter, double by) {
        return counter + static_cast<uint64_t>(by);
      };
      bytes.set_contribution_bytes(grown(bytes.contribution_bytes(), kBytes));
      bytes.set_contribution_wire_bytes(
          grown(bytes.contribution_wire_bytes(), kBytes * contributions));
      bytes.set_result_bytes(grown(bytes.result_bytes(), kBytes));
      bytes.set_result_wire_bytes(grown(bytes.result_wire_bytes(), kBytes * results));
      for (const auto& [rank, node] : job_.nodes) TakeWireBytes(rank, beat_, &job_);
      Encodings(scope()).Follow();
    }
  }
  void SetUp() override { beat_.set_generation(1); }
  WireRatios Planned() const { return job_.current.ratios.planned(); }

  v1::HeartbeatRequest beat_;
};

TEST_F(EncodingsTest, MeasuredRatiosMakeAChangeDue) {
  Measure(0.5, 1);
  EXPECT_EQ(Planned(), (WireRatios{0.5, 1}));
  EXPECT_EQ(job_.current.rebalance, PlanReason::kEncoding);
  EXPECT_EQ(ViewOf(job_, fleet_, 1).ratios, (WireRatios{0.5, 1}));
  EXPECT_THAT(history_.log.events().back().text(),
              HasSubstr("job 'a': contributions take 0.5 and results 1 bytes on the wire"));
}

TEST_F(EncodingsTest, RawPayloadsChangeNothing) {
  Measure(1, 1);
  EXPECT_TRUE(job_.current.ratios.settled());
  EXPECT_FALSE(job_.current.rebalance.has_value());
}

TEST_F(EncodingsTest, NextGenerationMeasuresAnew) {
  Measure(0.5, 1);
  job_.Begin(Generation(2), now_);
  EXPECT_EQ(Planned(), WireRatios());
  EXPECT_FALSE(job_.current.ratios.settled());
}

TEST_F(EncodingsTest, HeartbeatsOfAnotherGenerationAndOfEarlierVersionsAreIgnored) {
  beat_.set_generation(2);
  Measure(0.5, 1);
  EXPECT_FALSE(job_.current.ratios.settled());
  v1::HeartbeatRequest without;
  without.set_generation(1);
  for (int i = 0; i < 5; ++i) TakeWireBytes(NodeId(0), without, &job_);
  EXPECT_FALSE(job_.current.ratios.HasNews());
}

TEST_F(EncodingsTest, NodesThatTakeNoPartAreNotWaitedFor) {
  job_.nodes.at(NodeId(3)).idle = true;
  Measure(0.5, 1);
  EXPECT_EQ(Planned(), (WireRatios{0.5, 1}));
}

// CPU servers take the same part of the work whatever the ratios: nothing moves.
TEST_F(EncodingsTest, NothingMovesWhereSharesStay) {
  Measure(0.5, 1);
  Handover(scope()).Plan();
  EXPECT_FALSE(job_.current.change.under_way());
  EXPECT_FALSE(job_.current.rebalance.has_value());
}

}  // namespace
}  // namespace addend
