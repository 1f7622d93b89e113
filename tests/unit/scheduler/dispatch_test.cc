#include "services/scheduler/dispatch.h"

#include <gmock/gmock.h>

#include "services/scheduler/records.h"
#include "services/scheduler/status_view.h"
#include "tests/unit/scheduler/job_scope_fixture.h"

namespace addend {
namespace {

using testing::HasSubstr;

class DispatchTest : public JobScopeTest {
 protected:
  Decision Make() { return Dispatch(tokens_, &fleet_, &jobs_, &*changes_).Make(); }
  std::vector<const v1::NodeUpdate*> UpdatesOf(const Decision& decision, uint32_t rank) {
    std::vector<const v1::NodeUpdate*> updates;
    for (const NodeSend& send : decision.to_nodes) {
      if (send.watch == job_.nodes.at(NodeId(rank)).lease.watch) {
        updates.push_back(send.update.get());
      }
    }
    return updates;
  }

  const Tokens tokens_{absl::Hours(1), [this] { return now_; }};
};

TEST_F(DispatchTest, FullUpdateReplacesTheBroadcastForItsNode) {
  AddNodes(2);
  changes_->Broadcast(job_.id);
  changes_->Single(job_.id, NodeId(0));
  changes_->SendAll(job_.id, NodeId(0));
  const Decision decision = Make();
  ASSERT_EQ(UpdatesOf(decision, 0).size(), 1u);
  EXPECT_TRUE(UpdatesOf(decision, 0)[0]->full());
  ASSERT_EQ(UpdatesOf(decision, 1).size(), 1u);
  EXPECT_FALSE(UpdatesOf(decision, 1)[0]->full());
}

TEST_F(DispatchTest, NodeGetsATokenOncePerGenerationAndHalfLifetime) {
  AddNodes(1);
  const auto has_token = [this] {
    changes_->Broadcast(job_.id);
    const Decision decision = Make();
    return UpdatesOf(decision, 0)[0]->has_token();
  };
  EXPECT_TRUE(has_token());
  NextEvent();
  EXPECT_FALSE(has_token());
  NextEvent(absl::Minutes(30));
  EXPECT_TRUE(has_token());
  NextEvent();
  job_.current.number = Generation(2);
  EXPECT_TRUE(has_token());
}

TEST_F(DispatchTest, UpdateForAServerIsNumberedAndAwaitsItsAnswer) {
  Server& server = AddServer();
  changes_->ReservationFor(server.id, job_.id);
  changes_->ExpectAnswer(server.id, job_.id, TensorId(4));
  const Decision decision = Make();
  ASSERT_EQ(decision.to_servers.size(), 1u);
  const uint64_t number = decision.to_servers[0].update->update_id();
  EXPECT_EQ(decision.to_servers[0].update->jobs(0).job_name(), "a");
  EXPECT_TRUE(server.unanswered.contains(number));
}

TEST_F(DispatchTest, FullUpdateSupersedesWhatAServerHasNotAnswered) {
  AddNodes(2);
  Server& server = AddServer();
  Published("w", 5000);
  server.unanswered[3] = {{job_.id, TensorId(77)}};
  changes_->SendAll(server.id);
  const Decision decision = Make();
  EXPECT_EQ(decision.to_servers[0].update->jobs(0).reserve_size(), 1);
  EXPECT_EQ(server.unanswered.size(), 1u);
  EXPECT_FALSE(server.unanswered.contains(3));
}

TEST_F(DispatchTest, MembersWithoutAStreamGetNothing) {
  AddNodes(1);
  Server& server = AddServer();
  server.lease.watch = 0;
  job_.nodes.at(NodeId(0)).lease.watch = 0;
  changes_->SendAll(server.id);
  changes_->SendAll(job_.id, NodeId(0));
  const Decision decision = Make();
  EXPECT_TRUE(decision.to_servers.empty());
  EXPECT_TRUE(decision.to_nodes.empty());
}

TEST_F(DispatchTest, RecordsAreDeletedBeforeTheyAreWritten) {
  AddNodes(1);
  changes_->Delete(job_.id, NodeId(0));
  changes_->Store(job_.id, NodeId(0));
  const Decision decision = Make();
  ASSERT_EQ(decision.writes.size(), 2u);
  EXPECT_EQ(decision.writes[0].key, decision.writes[1].key);
  EXPECT_FALSE(decision.writes[0].value.has_value());
  EXPECT_TRUE(decision.writes[1].value.has_value());
}

TEST_F(DispatchTest, IdleNodeSeesTheJobAsForming) {
  AddNodes(2);
  job_.nodes.at(NodeId(1)).idle = true;
  changes_->Broadcast(job_.id);
  const Decision decision = Make();
  EXPECT_EQ(UpdatesOf(decision, 0)[0]->state(), v1::READY);
  EXPECT_EQ(UpdatesOf(decision, 1)[0]->state(), v1::FORMING);
  EXPECT_THAT(UpdatesOf(decision, 1)[0]->reason(), HasSubstr("on node 0 to end"));
}

TEST_F(DispatchTest, GoneNodeLearnsThatItsGenerationIsOver) {
  AddNodes(2);
  job_.current.gone[NodeId(1)] = "its trainer ended";
  changes_->Broadcast(job_.id);
  const Decision decision = Make();
  EXPECT_EQ(UpdatesOf(decision, 1)[0]->state(), v1::FAILED);
  EXPECT_EQ(UpdatesOf(decision, 1)[0]->reason(), "its trainer ended");
}

class StatusViewTest : public JobScopeTest {
 protected:
  StatusView view() const { return {process_, fleet_, jobs_, history_}; }
  const StatusView::Process process_{"1.2.3", "memory", now_};
};

TEST_F(StatusViewTest, StatusShowsMembersTensorsAndShares) {
  AddNodes(2);
  AddServer();
  Published("w", 5000);
  const v1::GetStatusResponse status = view().Status(now_);
  EXPECT_EQ(status.version(), "1.2.3");
  EXPECT_EQ(status.servers_size(), 1);
  ASSERT_EQ(status.jobs_size(), 1);
  EXPECT_EQ(status.jobs(0).nodes_size(), 2);
  EXPECT_EQ(status.jobs(0).tensor_bytes(), 20000u);
  EXPECT_EQ(status.jobs(0).shares(0).assigned(), 1);
}

TEST_F(StatusViewTest, StatusOfAJobLeavesOtherJobsOut) {
  jobs_.Create("b");
  changes_->Note(event_kind::kJoined, "b", "of b");
  changes_->Note(event_kind::kJoined, "", "of all");
  const v1::GetStatusResponse part = StatusView::OfJob(view().Status(now_), "a");
  ASSERT_EQ(part.jobs_size(), 1);
  EXPECT_EQ(part.jobs(0).name(), "a");
  ASSERT_EQ(part.events_size(), 1);
  EXPECT_EQ(part.events(0).text(), "of all");
}

TEST_F(StatusViewTest, FirstNonfiniteResultIsShownWhenAllNodesWereHeard) {
  AddNodes(2);
  job_.current.nonfinite.text = "NaN in w";
  job_.current.nonfinite.unheard = {NodeId(1)};
  EXPECT_EQ(view().Status(now_).jobs(0).first_nonfinite(), "");
  job_.current.nonfinite.unheard.clear();
  EXPECT_EQ(view().Status(now_).jobs(0).first_nonfinite(), "NaN in w");
}

TEST_F(StatusViewTest, SummaryCountsMembersAndJobs) {
  AddNodes(2);
  const Server& server = AddServer();
  job_.speeds[server.id] = 0.5;
  const MembershipSummary summary = view().Summary();
  EXPECT_EQ(summary.cpu_servers, 1u);
  EXPECT_EQ(summary.nodes, 2u);
  EXPECT_EQ(summary.jobs.at(v1::READY), 1u);
  EXPECT_EQ(summary.cpu_speeds.at(0).speed, 0.5);
}

}  // namespace
}  // namespace addend
