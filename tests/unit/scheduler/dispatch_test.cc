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

TEST_F(DispatchTest, NodeThatIsToldAgainHearsAlsoOfServersThatTheSameEventBrings) {
  AddNodes(1);
  const ServerId first = AddServer().id;
  job_.current.plan_servers.insert(first);
  changes_->TellServers(job_.id, NodeId(0));
  job_.current.plan_servers.insert(AddServer().id);
  changes_->TellServers(job_.id);
  const Decision decision = Make();
  ASSERT_EQ(UpdatesOf(decision, 0).size(), 2u);
  EXPECT_EQ(UpdatesOf(decision, 0)[1]->servers_size(), 2) << "it replaces what the node knows";
}

TEST_F(DispatchTest, ServerThatComesAndGoesInAnEventIsNotTold) {
  AddNodes(1);
  const ServerId server = AddServer().id;
  job_.current.plan_servers.insert(server);
  changes_->TellServers(job_.id);
  job_.current.plan_servers.erase(server);
  const Decision decision = Make();
  EXPECT_EQ(UpdatesOf(decision, 0)[0]->servers_size(), 0);
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

TEST_F(StatusViewTest, StatusOfAJobHasNothingOfOtherJobs) {
  v1::GetStatusResponse all;
  for (const auto& [id, job] : {std::pair(1, ""), std::pair(2, "a"), std::pair(3, "b")}) {
    v1::ServerStatus& server = *all.add_servers();
    server.set_server_id(id);
    server.set_colocated(id != 1);
    server.set_job(job);
    all.add_events()->set_job(job);
  }
  all.add_jobs()->set_name("a");
  all.add_jobs()->set_name("b");
  const v1::GetStatusResponse part = StatusView::OfJob(all, "a");
  ASSERT_EQ(part.servers_size(), 2) << "the CPU server, and the colocated server of the job";
  EXPECT_EQ(part.servers(0).server_id(), 1u);
  EXPECT_EQ(part.servers(1).server_id(), 2u);
  ASSERT_EQ(part.jobs_size(), 1);
  EXPECT_EQ(part.jobs(0).name(), "a");
  ASSERT_EQ(part.events_size(), 2) << "those of no job, and of the job";
  EXPECT_EQ(part.events(1).job(), "a");
}

TEST_F(StatusViewTest, StatusShowsANode) {
  AddNodes(2);
  Node& node = job_.nodes.at(NodeId(1));
  node.info.set_control_address("gpu1:7270");
  node.info.set_bandwidth_bps(1e9);
  node.beat.set_activity("2 of 2 trainers connected");
  node.beat.set_links("2 tcp");
  node.beat.set_generation(1);
  node.beat.mutable_traffic()->set_local_bytes(5);
  node.beat.mutable_rounds()->set_rounds(7);
  job_.nodes.at(NodeId(0)).lease.watch = 0;
  const v1::JobStatus job = view().Status(now_ + absl::Seconds(3)).jobs(0);
  EXPECT_FALSE(job.nodes(0).connected());
  const v1::NodeStatus& shown = job.nodes(1);
  EXPECT_EQ(shown.node_rank(), 1u);
  EXPECT_TRUE(shown.connected());
  EXPECT_EQ(shown.hostname(), "gpu1");
  EXPECT_EQ(shown.control_address(), "gpu1:7270");
  EXPECT_EQ(shown.incarnation(), 101u);
  EXPECT_EQ(shown.bandwidth_bps(), 1e9);
  EXPECT_EQ(shown.last_seen_s(), 3);
  EXPECT_EQ(shown.activity(), "2 of 2 trainers connected");
  EXPECT_EQ(shown.links(), "2 tcp");
  EXPECT_EQ(shown.traffic().local_bytes(), 5u);
  EXPECT_EQ(shown.rounds().rounds(), 7u);
  job_.current.number = Generation(2);
  EXPECT_FALSE(view().Status(now_).jobs(0).nodes(1).has_rounds()) << "of a former generation";
  EXPECT_EQ(view().Status(now_ - absl::Seconds(9)).jobs(0).nodes(1).last_seen_s(), 0)
      << "a lease that was restored begins later";
}

TEST_F(StatusViewTest, StatusShowsAServer) {
  Server& server = AddServer(1 << 20);
  server.info.set_control_address("cpu1:7170");
  server.info.add_endpoints()->set_port(7171);
  server.info.set_bandwidth_bps(1e9);
  server.info.set_colocated_job("a");
  server.info.set_colocated_node(1);
  server.beat.set_memory_used_bytes(70);
  server.beat.set_activity("idle");
  server.beat.mutable_traffic()->set_local_bytes(5);
  server.draining = true;
  job_.speeds[server.id] = 0.25;
  const v1::ServerStatus shown = view().Status(now_ + absl::Seconds(3)).servers(0);
  EXPECT_EQ(shown.server_id(), server.id.value());
  EXPECT_EQ(shown.incarnation(), server.info.incarnation());
  EXPECT_EQ(shown.hostname(), server.info.hostname());
  EXPECT_EQ(shown.control_address(), "cpu1:7170");
  EXPECT_EQ(shown.endpoints(0).port(), 7171u);
  EXPECT_EQ(shown.shards(), 1u);
  EXPECT_EQ(shown.bandwidth_bps(), 1e9);
  EXPECT_EQ(shown.memory_limit_bytes(), 1u << 20);
  EXPECT_EQ(shown.memory_used_bytes(), 70u);
  EXPECT_TRUE(shown.colocated());
  EXPECT_EQ(shown.job(), "a");
  EXPECT_EQ(shown.node_rank(), 1u);
  EXPECT_EQ(shown.last_seen_s(), 3);
  EXPECT_EQ(shown.traffic().local_bytes(), 5u);
  EXPECT_EQ(shown.activity(), "idle");
  EXPECT_TRUE(shown.draining());
  EXPECT_EQ(shown.speed(), 0.25);
  job_.speeds.clear();
  EXPECT_EQ(view().Status(now_).servers(0).speed(), 1);
}

TEST_F(StatusViewTest, StatusShowsAJobAndTheReasonForWhichItForms) {
  AddNodes(2);
  job_.created = now_;
  job_.plan_version = PlanVersion(9);
  job_.current.number = Generation(3);
  job_.current.reason = "waiting for node 1";
  job_.current.forming_since = now_;
  const absl::Time later = now_ + absl::Seconds(4);
  EXPECT_EQ(view().Status(later).jobs(0).reason(), "waiting for node 1") << "it is ready";
  job_.current.state = v1::FORMING;
  const v1::JobStatus job = view().Status(later).jobs(0);
  EXPECT_EQ(job.reason(), "waiting for node 1, 4 s");
  EXPECT_EQ(job.name(), "a");
  EXPECT_EQ(job.job_id(), job_.id.value());
  EXPECT_EQ(job.generation(), 3u);
  EXPECT_EQ(job.state(), v1::FORMING);
  EXPECT_EQ(job.plan_version(), 9u);
  EXPECT_EQ(job.uptime_s(), 4);
  EXPECT_EQ(job.settings().num_nodes(), 2u);
  EXPECT_EQ(job.settings().partition_bytes(), 4096u);
  job_.current.reason.clear();
  EXPECT_EQ(view().Status(later).jobs(0).reason(), "");
}

TEST_F(StatusViewTest, StatusOfTheSchedulerItself) {
  changes_->Note(event_kind::kJoined, "", "of all");
  const v1::GetStatusResponse status = view().Status(now_ + absl::Seconds(5));
  EXPECT_EQ(status.uptime_s(), 5);
  EXPECT_EQ(status.store(), "memory");
  EXPECT_EQ(status.events_size(), 1);
  EXPECT_EQ(status.now_unix_s(), static_cast<double>(absl::ToUnixSeconds(now_) + 5));
}

TEST_F(StatusViewTest, SharesAreOfPlannedTensorsAndOfTargetsWithoutThem) {
  AddNodes(2);
  AddServer();
  v1::JobStatus job = view().Status(now_).jobs(0);
  ASSERT_EQ(job.shares_size(), 1);
  EXPECT_EQ(job.shares(0).share(), 1);
  EXPECT_EQ(job.shares(0).assigned(), 0) << "nothing is planned";
  EXPECT_EQ(job.tensors(), 0u);
  Declared("c", 5000);
  job = view().Status(now_).jobs(0);
  EXPECT_EQ(job.tensor_bytes(), 0u) << "it is declared only";
  EXPECT_EQ(job.t_opt_s(), 0);
  Published("w", 5000);
  job = view().Status(now_).jobs(0);
  EXPECT_EQ(job.tensors(), 1u);
  EXPECT_EQ(job.shares(0).server_id(), 1u);
  job_.settings.set_num_nodes(3);
  EXPECT_EQ(view().Status(now_).jobs(0).shares_size(), 0) << "a node has not registered";
}

TEST_F(StatusViewTest, OptimumIsShownWithKnownBandwidths) {
  AddNodes(2);
  AddServer().info.set_bandwidth_bps(1e9);
  for (auto& [rank, node] : job_.nodes) node.info.set_bandwidth_bps(1e9);
  Published("w", 5000);
  EXPECT_GT(view().Status(now_).jobs(0).t_opt_s(), 0);
  EXPECT_EQ(view().Summary().by_job.at(0).t_opt_s, view().Status(now_).jobs(0).t_opt_s());
}

TEST_F(StatusViewTest, ServersAreRecommendedForCompleteJobsThatHaveNotFailed) {
  AddNodes(2);
  for (auto& [rank, node] : job_.nodes) node.info.set_bandwidth_bps(1e9);
  AddServer().info.set_bandwidth_bps(1e9);
  const uint32_t recommended = view().Status(now_).recommended_servers();
  EXPECT_GT(recommended, 0u);
  EXPECT_EQ(view().Summary().recommended_servers, recommended);
  job_.current.state = v1::FAILED;
  EXPECT_EQ(view().Status(now_).recommended_servers(), 0u);
  job_.current.state = v1::READY;
  job_.settings.set_num_nodes(3);
  EXPECT_EQ(view().Status(now_).recommended_servers(), 0u);
}

TEST_F(StatusViewTest, StatusOfAJobLeavesOtherJobsOut) {
  jobs_.Create("b");
  changes_->Note(event_kind::kJoined, "b", "of b");
  changes_->Note(event_kind::kJoined, "", "of all");
  AddServer();
  AddServer().info.set_colocated_job("a");
  AddServer().info.set_colocated_job("b");
  const v1::GetStatusResponse all = view().Status(now_ + absl::Seconds(1));
  const v1::GetStatusResponse part = StatusView::OfJob(all, "a");
  EXPECT_EQ(part.servers_size(), 2) << "the CPU server and its own";
  EXPECT_EQ(part.version(), all.version());
  EXPECT_EQ(part.uptime_s(), all.uptime_s());
  EXPECT_EQ(part.store(), all.store());
  EXPECT_EQ(part.recommended_servers(), all.recommended_servers());
  EXPECT_EQ(part.now_unix_s(), all.now_unix_s());
  ASSERT_EQ(part.jobs_size(), 1);
  EXPECT_EQ(part.jobs(0).name(), "a");
  ASSERT_EQ(part.events_size(), 1);
  EXPECT_EQ(part.events(0).text(), "of all");
}

TEST_F(StatusViewTest, FirstNonfiniteResultIsShownWhenAllNodesWereHeardTwice) {
  AddNodes(2);
  job_.current.nonfinite.text = "NaN in w";
  job_.current.nonfinite.awaited = {{NodeId(1), 2}};
  EXPECT_EQ(view().Status(now_).jobs(0).first_nonfinite(), "");
  job_.current.nonfinite.OnHeartbeat(NodeId(1));
  EXPECT_EQ(view().Status(now_).jobs(0).first_nonfinite(), "") << "it may have been under way";
  job_.current.nonfinite.OnHeartbeat(NodeId(1));
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
  EXPECT_EQ(summary.cpu_speeds.at(0).id, server.id);
  EXPECT_EQ(summary.cpu_speeds.at(0).speed, 0.5);
  EXPECT_EQ(summary.colocated_servers, 0u);
  EXPECT_EQ(summary.tensors, 0u);
  EXPECT_EQ(summary.imbalance, 0);
  fleet_.Find(server.id)->info.set_colocated_job("a");
  EXPECT_EQ(view().Summary().cpu_servers, 0u);
  EXPECT_EQ(view().Summary().colocated_servers, 1u);
  EXPECT_TRUE(view().Summary().cpu_speeds.empty());
}

TEST_F(StatusViewTest, SummaryHasTheLargestExcessOfAServerAndTheHighestVersion) {
  AddNodes(2);
  AddServer();
  AddServer();
  Published("w", 1000);  // a single partition
  jobs_.Create("b").plan_version = PlanVersion(70);
  const MembershipSummary summary = view().Summary();
  EXPECT_NEAR(summary.imbalance, 0.5, 1e-9);
  EXPECT_EQ(summary.plan_version, 70u);
  EXPECT_EQ(summary.tensors, 1u);
  ASSERT_EQ(summary.by_job.size(), 2u);
  EXPECT_EQ(summary.by_job[0].name, "a");
  EXPECT_EQ(summary.by_job[0].tensor_bytes, 4000u);
  EXPECT_EQ(summary.by_job[0].nodes_connected, 2u);
  EXPECT_EQ(summary.by_job[0].nodes_expected, 2u);
  EXPECT_EQ(summary.by_job[0].plan_version, job_.plan_version.value());
  job_.nodes.at(NodeId(0)).lease.watch = 0;
  EXPECT_EQ(view().Summary().by_job[0].nodes_connected, 1u);
}

TEST_F(StatusViewTest, SummaryHasTheHistory) {
  history_.lost.nodes = 3;
  changes_->CountPlan(PlanReason::kPace);
  changes_->Note(event_kind::kJoined, "a", "text");
  const MembershipSummary summary = view().Summary();
  EXPECT_EQ(summary.lost.nodes, 3u);
  EXPECT_EQ(summary.plan_changes.at(PlanReason::kPace), 1u);
  EXPECT_EQ(summary.events.size(), 1u);
}

}  // namespace
}  // namespace addend
