#include "services/scheduler/roster.h"

#include <gmock/gmock.h>

#include "lib/base/version.h"
#include "services/scheduler/registration.h"
#include "tests/unit/scheduler/job_scope_fixture.h"

namespace addend {
namespace {

using testing::HasSubstr;

class RosterTest : public JobScopeTest {
 protected:
  Roster roster() { return {&fleet_, &jobs_, &leases_, &*changes_}; }
  // The colocated server of a node, of the same process.
  ServerId AddColocated(uint32_t rank) {
    Node& node = job_.nodes.at(NodeId(rank));
    Server server;
    server.id = fleet_.NumberFor(0);
    server.info.set_incarnation(node.info.incarnation());
    server.info.set_colocated_job(job_.name);
    server.info.set_colocated_node(rank);
    server.info.set_shards(1);
    server.lease = Leases::Begun(now_);
    server.lease.watch = 500 + rank;
    server.lease.has_watched = true;
    node.info.set_colocated_server_id(server.id.value());
    const ServerId id = server.id;
    fleet_.Add(std::move(server));
    return id;
  }

  Leases leases_{absl::Seconds(5), now_};
};

TEST_F(RosterTest, LostNodeTakesItsColocatedServerAlong) {
  AddNodes(2);
  const ServerId server = AddColocated(1);
  roster().RemoveNode(&job_, NodeId(1), "node 1 was lost", true);
  EXPECT_EQ(fleet_.Find(server), nullptr);
  EXPECT_EQ(job_.current.state, v1::FAILED);
  EXPECT_EQ(history_.lost.nodes, 1u);
  EXPECT_EQ(history_.lost.colocated_servers, 1u);
}

TEST_F(RosterTest, LostColocatedServerTakesItsNodeAlongIfOthersNeedItsSums) {
  AddNodes(2);
  const ServerId unused = AddColocated(0);
  roster().RemoveServer(unused, event_kind::kLost, "lost");
  EXPECT_EQ(job_.nodes.size(), 2u) << "nobody needs its sums";
  const ServerId owner = AddColocated(1);
  Published("w", 20000);
  roster().RemoveServer(owner, event_kind::kLost, "lost");
  EXPECT_FALSE(job_.nodes.contains(NodeId(1)));
}

TEST_F(RosterTest, JobEndsWhenItsLastNodeLeavesAndWaitsWhenItIsLost) {
  AddNodes(1);
  roster().RemoveNode(&job_, NodeId(0), "lost", true);
  EXPECT_EQ(jobs_.size(), 1u);
  EXPECT_EQ(job_.empty_since, now_);
  EXPECT_EQ(job_.current.number, Generation(2));
  AddNodes(1);
  roster().RemoveNode(&job_, NodeId(0), "left", false);
  EXPECT_EQ(jobs_.size(), 0u);
}

TEST_F(RosterTest, ShrinkingJobGoesOnWithoutALostNode) {
  AddNodes(3);
  job_.settings.set_on_node_loss("shrink");
  roster().LoseNode(&job_, NodeId(1), "its trainer ended");
  EXPECT_EQ(job_.current.state, v1::READY);
  EXPECT_EQ(job_.current.gone.count(NodeId(1)), 1u);
  roster().LoseNode(&job_, NodeId(0), "its trainer ended");
  roster().LoseNode(&job_, NodeId(2), "its trainer ended");
  EXPECT_EQ(job_.current.state, v1::FAILED) << "nobody is left";
}

TEST_F(RosterTest, AccusedServerIsLeftByTheJobAndLostWhenItsOwnStreamBreaks) {
  AddNodes(2);
  Server& server = AddServer();
  AddServer();
  Published("w", 20000);
  const Node& reporter = job_.nodes.at(NodeId(0));
  roster().AccuseServer(&job_, &server, reporter, "refused");
  EXPECT_NE(fleet_.Find(server.id), nullptr) << "other jobs still use it";
  EXPECT_TRUE(job_.avoided.contains(server.id));
  server.lease.watch = 0;
  server.lease.unwatched_since = now_;
  const ServerId id = server.id;
  roster().EndLeases();
  EXPECT_EQ(fleet_.Find(id), nullptr);
}

TEST_F(RosterTest, AvoidedServerIsUsedAgainAfterTenMinutes) {
  AddNodes(1);
  job_.avoided[ServerId(9)] = now_ + absl::Minutes(10);
  roster().EndLeases();
  EXPECT_FALSE(job_.current.rebalance.has_value());
  NextEvent(absl::Minutes(10));
  for (auto& [rank, node] : job_.nodes) node.lease.last_seen = now_;
  roster().EndLeases();
  EXPECT_TRUE(job_.avoided.empty());
  EXPECT_EQ(job_.current.rebalance, PlanReason::kJoin);
}

class RegistrationTest : public RosterTest {
 protected:
  absl::StatusOr<v1::RegisterServerResponse> Register(const v1::RegisterServerRequest& request) {
    return Registration(rules_, tokens_, &fleet_, &jobs_, &leases_, &*changes_)
        .RegisterServer(request);
  }
  absl::StatusOr<v1::RegisterNodeResponse> Register(const v1::RegisterNodeRequest& request) {
    return Registration(rules_, tokens_, &fleet_, &jobs_, &leases_, &*changes_)
        .RegisterNode(request);
  }
  static v1::RegisterServerRequest ServerRequest(uint64_t incarnation) {
    v1::RegisterServerRequest request;
    request.set_protocol_version(kProtocolVersion);
    request.set_incarnation(incarnation);
    request.set_member_key(std::string(32, 'k'));
    request.set_hostname("cpu");
    request.set_control_address("cpu:7071");
    request.set_shards(1);
    request.add_endpoints()->set_port(7072);
    return request;
  }
  static v1::RegisterNodeRequest NodeRequest(uint64_t incarnation) {
    v1::RegisterNodeRequest request;
    request.set_protocol_version(kProtocolVersion);
    request.set_incarnation(incarnation);
    request.set_member_key(std::string(32, 'k'));
    request.set_job("b");
    request.mutable_settings()->set_num_nodes(1);
    request.mutable_settings()->set_local_size(1);
    return request;
  }

  const Registration::Rules rules_{"", [] { return std::string(32, 't'); }};
  const Tokens tokens_{absl::Hours(1), [this] { return now_; }};
};

TEST_F(RegistrationTest, ServerKeepsItsNumberInItsIncarnation) {
  const auto first = Register(ServerRequest(1));
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->lease_s(), 5);
  EXPECT_EQ(Register(ServerRequest(1))->server_id(), first->server_id());
  v1::RegisterServerRequest stranger = ServerRequest(1);
  stranger.set_member_key(std::string(32, 'x'));
  EXPECT_TRUE(absl::IsPermissionDenied(Register(stranger).status()));
}

TEST_F(RegistrationTest, NewStartReplacesAServerOnlyWhenThatIsNotConnected) {
  const ServerId first(Register(ServerRequest(1))->server_id());
  fleet_.Find(first)->lease.watch = 9;
  EXPECT_TRUE(absl::IsAlreadyExists(Register(ServerRequest(2)).status()));
  fleet_.Find(first)->lease.watch = 0;
  EXPECT_TRUE(Register(ServerRequest(2)).ok());
  EXPECT_EQ(fleet_.Find(first), nullptr);
}

TEST_F(RegistrationTest, FirstNodeCreatesItsJob) {
  const auto response = Register(NodeRequest(1));
  ASSERT_TRUE(response.ok()) << response.status();
  const Job* const job = jobs_.Find("b");
  ASSERT_NE(job, nullptr);
  EXPECT_EQ(job->id.value(), response->job_id());
  EXPECT_EQ(job->key, std::string(32, 't'));
  EXPECT_FALSE(response->token().secret().empty());
}

TEST_F(RegistrationTest, NodeThatJoinsARunningGenerationIsIdleUnlessItWasThere) {
  ASSERT_TRUE(Register(NodeRequest(1)).ok());
  Job& job = *jobs_.Find("b");
  job.nodes.at(NodeId(0)).lease.has_watched = true;
  job.current.state = v1::READY;
  roster().RemoveNode(&job, NodeId(0), "lost", true);
  job.current.state = v1::READY;
  job.current.lost[NodeId(0)] = 1;
  job.nodes[NodeId(5)].rank = NodeId(5);  // goes on, so that the generation is not over
  ASSERT_TRUE(Register(NodeRequest(1)).ok());
  EXPECT_FALSE(job.nodes.at(NodeId(0)).idle) << "it was only cut off";
}

TEST_F(RegistrationTest, RefusedAgentDoesNotEndTheAgentInItsPlace) {
  ASSERT_TRUE(Register(NodeRequest(1)).ok());
  Job& job = *jobs_.Find("b");
  job.secret_digest = "secret";
  job.nodes.at(NodeId(0)).lease.has_watched = true;  // not connected any more
  EXPECT_TRUE(absl::IsPermissionDenied(Register(NodeRequest(2)).status()));
  EXPECT_EQ(job.nodes.at(NodeId(0)).info.incarnation(), 1u);
}

}  // namespace
}  // namespace addend
