// Ranks that leave by shutdown(), and idle nodes.
#include "services/worker_agent/departures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_format.h"
#include "tests/unit/worker_agent/fake_generation.h"

namespace addend {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class DeparturesTest : public DeclaredTensorTest {
 protected:
  DeparturesTest() { node_.reports.said.clear(); }
  void Leave(uint32_t rank) {
    generation_.ranks.Leave(generation_.trainers[rank].get());
    departures_.OnDeparture(*generation_.trainers[rank]);
  }
  // A rank of another node has left.
  void Depart() {
    v1::NodeUpdate update;
    update.set_departed(true);
    departures_.Apply(update);
  }
  static v1::NodeUpdate Awaited(uint32_t id, const std::string& name, uint64_t round) {
    v1::NodeUpdate update;
    update.set_departed(true);
    v1::AwaitedRound* const awaited = update.add_awaited();
    awaited->set_tensor_id(id);
    awaited->set_name(name);
    awaited->set_round(round);
    return update;
  }

  Departures departures_{generation_.context, &generation_.ranks, &generation_.tensors,
                         &generation_.state};
};

TEST_F(DeparturesTest, OpenRoundThatNeedsADepartedRankFails) {
  ASSERT_TRUE(generation_.Push(tensor_, 0, {1, 2}).ok());
  Leave(1);
  EXPECT_THAT(generation_.state.why().message(),
              HasSubstr("rank 3 (local rank 1 of node 1, pid 101 on host) has left by shutdown() "
                        "without a contribution to round 1 of tensor 't', for which other ranks "
                        "wait"));
}

TEST_F(DeparturesTest, RoundWithItsContributionGoesOn) {
  ASSERT_TRUE(generation_.Push(tensor_, 1, {1, 2}).ok());
  Leave(1);
  EXPECT_TRUE(generation_.state.running());
  EXPECT_THAT(node_.reports.said, ::testing::Contains("beat"));
  departures_.Apply(Awaited(0, "t", 1));
  EXPECT_TRUE(generation_.state.running()) << "it has contributed to this round";
  departures_.Apply(Awaited(0, "t", 2));
  EXPECT_FALSE(generation_.state.running());
}

TEST_F(DeparturesTest, RoundOfATensorThatTheRankNeverDeclaredFails) {
  Leave(1);
  departures_.Apply(Awaited(0, "another", 1));
  EXPECT_FALSE(generation_.state.running());
}

TEST_F(DeparturesTest, RemovedTensorsAwaitNoRank) {
  Leave(1);
  departures_.Apply(Awaited(6, "t", 1));
  EXPECT_TRUE(generation_.state.running());
}

TEST_F(DeparturesTest, RoundsThatWaitForOtherNodesAreToldOnceAtOnce) {
  Depart();
  ASSERT_TRUE(generation_.Push(tensor_, 0, {1, 2}).ok());
  ASSERT_TRUE(generation_.Push(tensor_, 1, {1, 2}).ok());
  node_.reports.said.clear();
  departures_.TellAwaited();
  EXPECT_THAT(node_.reports.said, IsEmpty()) << "not within a moment";
  node_.loop.Pass(absl::Seconds(1));
  departures_.TellAwaited();
  departures_.TellAwaited();
  EXPECT_THAT(node_.reports.said, ElementsAre("beat"));
  v1::HeartbeatRequest beat;
  departures_.FillBeat(&beat);
  ASSERT_EQ(beat.awaited_size(), 1);
  EXPECT_EQ(beat.awaited(0).name(), "t");
  EXPECT_EQ(beat.awaited(0).round(), 1u);
}

TEST_F(DeparturesTest, HeartbeatNamesTheOldestRoundsOnceARankHasDeparted) {
  for (int i = 0; i < 17; ++i) {
    const auto tensor = generation_.Declare(Floats(absl::StrFormat("t%d", i), 2));
    for (uint32_t rank = 0; rank < 2; ++rank) {
      ASSERT_TRUE(generation_.Push(tensor, rank, {1, 2}).ok());
    }
    node_.loop.Pass(absl::Milliseconds(1));
  }
  node_.loop.Pass(absl::Seconds(1));
  v1::HeartbeatRequest beat;
  departures_.FillBeat(&beat);
  EXPECT_EQ(beat.awaited_size(), 0) << "no rank has departed";
  EXPECT_EQ(beat.departed_ranks(), 0u);
  Depart();
  departures_.FillBeat(&beat);
  ASSERT_EQ(beat.awaited_size(), 16);
  EXPECT_EQ(beat.awaited(0).name(), "t0");
  EXPECT_EQ(beat.awaited(15).name(), "t15");
  EXPECT_EQ(beat.awaited(0).tensor_id(), 0u) << "it is not planned";
}

TEST_F(DeparturesTest, HeartbeatCountsTheRanksThatHaveDeparted) {
  Leave(1);
  v1::HeartbeatRequest beat;
  departures_.FillBeat(&beat);
  EXPECT_EQ(beat.departed_ranks(), 1u);
}

TEST_F(DeparturesTest, PlannedTensorIsAwaitedByItsNumber) {
  generation_.Apply(FakeGeneration::PlanOf(6, "t", 2, {2}));
  for (uint32_t rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(generation_.Push(tensor_, rank, {1, 2}).ok());
  }
  node_.loop.Pass(absl::Seconds(1));
  Depart();
  v1::HeartbeatRequest beat;
  departures_.FillBeat(&beat);
  ASSERT_EQ(beat.awaited_size(), 1);
  EXPECT_EQ(beat.awaited(0).tensor_id(), 6u);
}

TEST_F(DeparturesTest, OnlyWholeRoundsOfAllNodesAreAwaited) {
  const auto latest = generation_.Declare(Floats("latest", 2, ReduceOp::kAccumulate));
  const auto wrong = generation_.Declare(Floats("wrong", 2));
  for (uint32_t rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(generation_.Push(latest, rank, {1, 2}).ok());
    ASSERT_TRUE(generation_.Push(wrong, rank, {1, 2}).ok());
  }
  ASSERT_TRUE(generation_.Push(tensor_, 0, {1, 2}).ok()) << "rank 1 of this node is missing";
  wrong->error = absl::InternalError("wrong");
  node_.loop.Pass(absl::Seconds(1));
  Depart();
  v1::HeartbeatRequest beat;
  departures_.FillBeat(&beat);
  ASSERT_EQ(beat.awaited_size(), 1);
  EXPECT_EQ(beat.awaited(0).name(), "latest") << "its plan awaits the other nodes";
  generation_.Apply(FakeGeneration::PlanOf(7, "latest", 2, {2}));
  beat.Clear();
  departures_.FillBeat(&beat);
  EXPECT_EQ(beat.awaited_size(), 0) << "each node has rounds of its own";
}

TEST_F(DeparturesTest, NodeIsIdleWhenAllRanksHaveLeft) {
  departures_.MaybeReportIdle();
  EXPECT_FALSE(departures_.idle_reported());
  for (auto& trainer : generation_.trainers) generation_.ranks.Leave(trainer.get());
  node_.reports.said.clear();
  departures_.MaybeReportIdle();
  departures_.MaybeReportIdle();
  EXPECT_THAT(node_.reports.said, ElementsAre("idle"));
}

TEST(DeparturesIdleTest, RanksThatNeverCameGetAMoment) {
  FakeNode node;
  FakeGeneration generation(&node);
  LocalRanks ranks(NodeId(1), 2, "host");
  Departures departures(generation.context, &ranks, &generation.tensors, &generation.state);
  FakeTrainer trainer;
  ranks.Enter(0, &trainer);
  ranks.Leave(&trainer);
  departures.MaybeReportIdle();
  EXPECT_FALSE(departures.idle_reported());
  node.loop.Pass(absl::Seconds(1));
  EXPECT_TRUE(departures.idle_reported());
}

}  // namespace
}  // namespace addend
