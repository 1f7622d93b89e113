#include "services/scheduler/leases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace addend {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr absl::Duration kLease = absl::Seconds(5);

class LeasesTest : public testing::Test {
 protected:
  LeasesTest() : job_(jobs_.Create("a")) {
    job_.settings.set_num_nodes(3);
    for (uint32_t rank = 0; rank < 3; ++rank) {
      Node& node = job_.nodes[NodeId(rank)];
      node.rank = NodeId(rank);
      node.lease = Connected(10 + rank);
    }
  }
  Lease Connected(WatchId watch) const {
    Lease lease = Leases::Begun(now_);
    lease.watch = watch;
    lease.has_watched = true;
    return lease;
  }
  Node& node(uint32_t rank) { return job_.nodes.at(NodeId(rank)); }
  Server& AddServer() {
    Server server;
    server.id = fleet_.NumberFor(0);
    server.lease = Connected(20 + server.id.value());
    const ServerId id = server.id;
    fleet_.Add(std::move(server));
    return *fleet_.Find(id);
  }
  void Disconnect(Lease* lease) {
    lease->watch = 0;
    lease->unwatched_since = now_;
  }

  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
  Fleet fleet_;
  Jobs jobs_;
  Job& job_;
  Leases leases_{kLease, now_};
  History history_;
  UpdateNumbers numbers_{now_};
};

TEST_F(LeasesTest, SilentMembersExpireAfterALease) {
  const Server& server = AddServer();
  now_ += kLease - absl::Milliseconds(1);
  EXPECT_THAT(leases_.Expired(now_, job_), IsEmpty());
  node(1).lease.last_seen = now_;
  now_ += absl::Milliseconds(1);
  EXPECT_THAT(leases_.Expired(now_, job_), ElementsAre(NodeId(0), NodeId(2)));
  EXPECT_THAT(leases_.Expired(now_, fleet_), ElementsAre(server.id));
  EXPECT_EQ(leases_.WhyExpired(now_, node(0).lease), "nothing was heard of it for 5s");
}

TEST_F(LeasesTest, MemberWithoutAStreamExpiresThoughItIsHeard) {
  Disconnect(&node(0).lease);
  now_ += kLease;
  for (uint32_t rank = 0; rank < 3; ++rank) node(rank).lease.last_seen = now_;
  EXPECT_THAT(leases_.Expired(now_, job_), ElementsAre(NodeId(0)));
  EXPECT_EQ(leases_.WhyExpired(now_, node(0).lease),
            "its connection broke and did not come back for 5s");
}

TEST_F(LeasesTest, ConnectedAndRestoredMembersLive) {
  Lease lease = Connected(1);
  EXPECT_TRUE(leases_.Alive(lease, now_));
  Disconnect(&lease);
  EXPECT_FALSE(leases_.Alive(lease, now_)) << "its stream broke: a new start replaces it";
  const Lease restored = leases_.Restored(now_);
  EXPECT_TRUE(leases_.Alive(restored, now_ + 2 * kLease - absl::Milliseconds(1)));
  EXPECT_FALSE(leases_.Alive(restored, now_ + 2 * kLease));
}

TEST_F(LeasesTest, NewStreamEndsTheFormerStreamOfItsMember) {
  Changes changes(now_, &history_, &numbers_);
  Lease& lease = node(0).lease;
  leases_.Open(91, {ServerId(), job_.id, NodeId(0)}, &lease, &changes);
  leases_.Open(92, {ServerId(), job_.id, NodeId(0)}, &lease, &changes);
  EXPECT_EQ(lease.watch, 92u);
  const Decision decision = changes.TakeDecision();
  ASSERT_EQ(decision.ended.size(), 2u);
  EXPECT_EQ(decision.ended[1].watch, 91u);
  EXPECT_TRUE(absl::IsAborted(decision.ended[1].reason));
  EXPECT_FALSE(leases_.Broke(91).has_value()) << "it was replaced";
  EXPECT_EQ(leases_.Broke(92)->node, NodeId(0));
  EXPECT_FALSE(leases_.Broke(92).has_value());
}

TEST_F(LeasesTest, GapInWhichTheSchedulerStoodStillProlongsLeases) {
  now_ += absl::Seconds(60);
  EXPECT_EQ(leases_.ForgiveGap(now_, &fleet_, &jobs_), absl::Seconds(59));
  EXPECT_THAT(leases_.Expired(now_, job_), IsEmpty());
  now_ += absl::Seconds(1);
  EXPECT_EQ(leases_.ForgiveGap(now_, &fleet_, &jobs_), absl::ZeroDuration());
}

TEST_F(LeasesTest, MemberThatWasSilentBeforeTheGapHasHalfALeaseAfterIt) {
  const Server& server = AddServer();
  for (int tick = 0; tick < 5; ++tick) {
    now_ += absl::Milliseconds(980);
    leases_.ForgiveGap(now_, &fleet_, &jobs_);
  }
  for (uint32_t rank = 1; rank < 3; ++rank) node(rank).lease.last_seen = now_;
  Disconnect(&node(2).lease);
  now_ += absl::Seconds(8);
  leases_.ForgiveGap(now_, &fleet_, &jobs_);
  now_ += kLease / 2 - absl::Milliseconds(1);
  EXPECT_THAT(leases_.Expired(now_, job_), IsEmpty());
  EXPECT_THAT(leases_.Expired(now_, fleet_), IsEmpty());
  now_ += absl::Milliseconds(1);
  EXPECT_THAT(leases_.Expired(now_, job_), ElementsAre(NodeId(0)));
  EXPECT_THAT(leases_.Expired(now_, fleet_), ElementsAre(server.id));
  now_ += absl::Milliseconds(1500);
  EXPECT_THAT(leases_.Expired(now_, job_), ElementsAre(NodeId(0), NodeId(1), NodeId(2)));
}

TEST_F(LeasesTest, GapProlongsNoLeaseThatIsLonger) {
  node(0).lease = leases_.Restored(now_);
  now_ += absl::Seconds(4);
  leases_.ForgiveGap(now_, &fleet_, &jobs_);
  now_ += 2 * kLease - absl::Seconds(4) - absl::Milliseconds(1);
  EXPECT_THAT(leases_.Expired(now_, job_), ElementsAre(NodeId(1), NodeId(2)));
}

TEST_F(LeasesTest, GapGivesAnAccusedNodeItsTimeAgain) {
  leases_.Accuse(now_, NodeId(0), "cannot reach it", &node(1));
  now_ += absl::Seconds(60);
  leases_.ForgiveGap(now_, &fleet_, &jobs_);
  EXPECT_EQ(leases_.Guilty(now_, job_), nullptr);
  now_ += kLease;
  EXPECT_EQ(leases_.Guilty(now_, job_), &node(1));
}

TEST_F(LeasesTest, AccusedNodeIsGuiltyWhenItsConnectionBreaks) {
  leases_.Accuse(now_, NodeId(0), "cannot reach it", &node(1));
  EXPECT_EQ(leases_.Guilty(now_, job_), nullptr);
  Disconnect(&node(1).lease);
  EXPECT_EQ(leases_.Guilty(now_, job_), &node(1));
}

TEST_F(LeasesTest, AccusedNodeThatThisSchedulerHasNotHeardYetKeepsItsLease) {
  node(1).lease = leases_.Restored(now_);
  leases_.Accuse(now_, NodeId(0), "could not reach it before", &node(1));
  EXPECT_EQ(leases_.Guilty(now_, job_), nullptr);
  now_ += kLease;
  EXPECT_EQ(leases_.Guilty(now_, job_), &node(1));
}

TEST_F(LeasesTest, ConnectedNodeIsGuiltyALeaseAfterItsFirstAccusation) {
  leases_.Accuse(now_, NodeId(0), "cannot reach it", &node(1));
  now_ += absl::Seconds(4);
  leases_.Accuse(now_, NodeId(0), "still cannot reach it", &node(1));
  leases_.Accuse(now_, NodeId(2), "cannot reach it either", &node(1));
  EXPECT_EQ(leases_.Guilty(now_, job_), nullptr);
  now_ += absl::Seconds(1);
  EXPECT_EQ(leases_.Guilty(now_, job_), &node(1)) << "later accusations give no new lease";
}

TEST_F(LeasesTest, NodeThatMostOthersCannotReachGoesFirst) {
  leases_.Accuse(now_, NodeId(1), "cannot reach it", &node(0));
  leases_.Accuse(now_, NodeId(0), "cannot reach it", &node(1));
  leases_.Accuse(now_, NodeId(2), "cannot reach it", &node(1));
  now_ += kLease;
  EXPECT_EQ(leases_.Guilty(now_, job_), &node(1));
}

TEST_F(LeasesTest, AccusedServerIsGuiltyIfItsStreamBrokeAtAboutThatTime) {
  Server& server = AddServer();
  leases_.Accuse(now_, "server 1 was lost", &server);
  EXPECT_THAT(Leases::Guilty(fleet_), IsEmpty()) << "it is connected";
  now_ += absl::Milliseconds(900);
  Disconnect(&server.lease);
  EXPECT_THAT(Leases::Guilty(fleet_), ElementsAre(server.id));
  now_ += absl::Seconds(1);
  Disconnect(&server.lease);
  EXPECT_THAT(Leases::Guilty(fleet_), IsEmpty()) << "the accusation is older than the break";
}

TEST_F(LeasesTest, EmptyJobIsKeptForTwelveLeases) {
  job_.empty_since = now_;
  EXPECT_THAT(leases_.Abandoned(now_ + 12 * kLease - absl::Milliseconds(1), jobs_), IsEmpty());
  EXPECT_THAT(leases_.Abandoned(now_ + 12 * kLease, jobs_), ElementsAre(job_.id));
}

TEST_F(LeasesTest, LookIsDueWhenALeaseMayHaveEnded) {
  EXPECT_TRUE(leases_.IsDue(now_)) << "there was none so far";
  leases_.PlanLook(now_, fleet_, jobs_);
  EXPECT_FALSE(leases_.IsDue(now_ + absl::Milliseconds(999)));
  EXPECT_TRUE(leases_.IsDue(now_ + absl::Seconds(1)));
  node(1).lease.last_seen = now_ - kLease + absl::Milliseconds(50);
  leases_.PlanLook(now_, fleet_, jobs_);
  EXPECT_FALSE(leases_.IsDue(now_ + absl::Milliseconds(49)));
  EXPECT_TRUE(leases_.IsDue(now_ + absl::Milliseconds(50)));
  EXPECT_EQ(leases_.NextTick(now_, jobs_), now_ + absl::Milliseconds(50));
}

TEST_F(LeasesTest, LookIsDueBeforeALeaseEndsThatBeginsAfterTheLast) {
  Leases brief(absl::Milliseconds(300), now_);
  jobs_.Remove(job_.id);
  brief.PlanLook(now_, fleet_, jobs_);
  EXPECT_FALSE(brief.IsDue(now_ + absl::Milliseconds(299)));
  EXPECT_TRUE(brief.IsDue(now_ + absl::Milliseconds(300)));
}

TEST_F(LeasesTest, LookIsDueAtOnceForAnAccusedMemberAndOftenAfterwards) {
  Server& server = AddServer();
  const auto expect_looks = [this] {
    EXPECT_TRUE(leases_.IsDue(now_));
    leases_.PlanLook(now_, fleet_, jobs_);
    EXPECT_FALSE(leases_.IsDue(now_ + absl::Milliseconds(19)));
    EXPECT_TRUE(leases_.IsDue(now_ + absl::Milliseconds(20)));
  };
  leases_.PlanLook(now_, fleet_, jobs_);
  leases_.Accuse(now_, "server 1 was lost", &server);
  expect_looks();
  now_ += absl::Seconds(1);
  leases_.PlanLook(now_, fleet_, jobs_);
  EXPECT_FALSE(leases_.IsDue(now_ + absl::Milliseconds(20))) << "the accusation is old";
  leases_.Accuse(now_, NodeId(1), "cannot reach it", &node(0));
  expect_looks();
}

TEST_F(LeasesTest, TickIsSoonWhereAJobWaitsForIt) {
  leases_.PlanLook(now_, fleet_, jobs_);
  EXPECT_EQ(leases_.NextTick(now_, jobs_), now_ + absl::Seconds(1));
  job_.forming_changed = true;
  EXPECT_EQ(leases_.NextTick(now_, jobs_), now_ + absl::Milliseconds(200));
  job_.current.told.answered.insert(1);
  EXPECT_EQ(leases_.NextTick(now_, jobs_), now_ + absl::Milliseconds(20));
}

}  // namespace
}  // namespace addend
