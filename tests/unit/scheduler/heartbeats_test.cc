#include "services/scheduler/heartbeats.h"

#include <algorithm>
#include <string>

#include "services/scheduler/departures.h"
#include "tests/unit/scheduler/job_scope_fixture.h"

namespace addend {
namespace {

TEST(DeparturesTest, RoundsThatOthersWaitForAreToldOnceANodeHasDepartedRanks) {
  JobDepartures departures;
  Agreements tensors;
  v1::HeartbeatRequest waits;
  waits.add_awaited()->set_name("w");
  EXPECT_TRUE(departures.Take(NodeId(0), waits));
  EXPECT_FALSE(departures.Take(NodeId(0), waits)) << "it is known";
  v1::NodeUpdate update;
  departures.Fill(tensors, &update);
  EXPECT_FALSE(update.departed());
  EXPECT_EQ(update.awaited_size(), 0);
  v1::HeartbeatRequest left;
  left.set_departed_ranks(1);
  EXPECT_TRUE(departures.Take(NodeId(1), left));
  EXPECT_FALSE(departures.Take(NodeId(1), left));
  departures.Fill(tensors, &update);
  EXPECT_TRUE(update.departed());
  EXPECT_EQ(update.awaited_size(), 1);
  departures.Forget("w");
  departures.Fill(tensors, &update);
  EXPECT_EQ(update.awaited_size(), 0);
}

TEST(DeparturesTest, HeartbeatAndJobHaveALimitOfAwaitedRounds) {
  JobDepartures departures;
  v1::HeartbeatRequest left;
  left.set_departed_ranks(1);
  departures.Take(NodeId(1), left);
  for (uint32_t beat = 0; beat < 100; ++beat) {
    v1::HeartbeatRequest waits;
    for (uint32_t i = 0; i < 100; ++i) {
      v1::AwaitedRound& round = *waits.add_awaited();
      round.set_name("w");
      round.set_round(100 * beat + i);
    }
    departures.Take(NodeId(0), waits);
    v1::NodeUpdate update;
    departures.Fill(Agreements(), &update);
    EXPECT_EQ(update.awaited_size(), std::min<int>(256, 16 * (beat + 1)));
  }
}

class HeartbeatsTest : public JobScopeTest {};

TEST_F(HeartbeatsTest, EarliestNonfiniteResultOfTheGenerationIsKept) {
  AddNodes(2);
  v1::HeartbeatRequest beat;
  beat.set_generation(1);
  v1::Incident& incident = *beat.add_incidents();
  incident.set_kind("nonfinite");
  incident.set_text("later");
  incident.set_age_s(1);
  TakeIncidents(beat, &job_, &*changes_);
  EXPECT_EQ(job_.current.nonfinite.awaited.size(), 2u);
  incident.set_text("earlier");
  incident.set_age_s(5);
  TakeIncidents(beat, &job_, &*changes_);
  beat.set_generation(2);
  incident.set_text("of another generation");
  incident.set_age_s(50);
  TakeIncidents(beat, &job_, &*changes_);
  EXPECT_EQ(job_.current.nonfinite.text, "earlier");
  EXPECT_EQ(changes_->TakeDecision().reasons.size(), 3u);
}

TEST_F(HeartbeatsTest, NodeThatHadReceivedANonfiniteResultIsNotItsOrigin) {
  AddNodes(3);
  FirstNonfinite& first = job_.current.nonfinite;
  v1::HeartbeatRequest beat;
  beat.set_generation(1);
  v1::Incident& incident = *beat.add_incidents();
  incident.set_kind("nonfinite");
  incident.set_follows(true);
  incident.set_text("a consequence, by a clock that is wrong");
  incident.set_age_s(9);
  TakeIncidents(beat, &job_, &*changes_);
  EXPECT_EQ(first.text, incident.text());
  incident.set_follows(false);
  incident.set_text("the origin");
  incident.set_age_s(1);
  TakeIncidents(beat, &job_, &*changes_);
  EXPECT_EQ(first.text, "the origin");
  incident.set_follows(true);
  incident.set_text("another consequence");
  incident.set_age_s(20);
  TakeIncidents(beat, &job_, &*changes_);
  EXPECT_EQ(first.text, "the origin");
}

TEST_F(HeartbeatsTest, ShownPartOfAHeartbeatIsShort) {
  v1::HeartbeatRequest beat;
  beat.set_activity(std::string(5000, 'a'));
  beat.add_incidents();
  beat.add_paces();
  const v1::HeartbeatRequest shown = ShownOf(beat);
  EXPECT_LE(shown.activity().size(), 1000u);
  EXPECT_EQ(shown.incidents_size() + shown.paces_size(), 0);
}

}  // namespace
}  // namespace addend
