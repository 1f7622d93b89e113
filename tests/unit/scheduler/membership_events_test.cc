// The information for people and programs beside the plan: events, incidents, the optimum, the
// counts.
#include <gmock/gmock.h>

#include <limits>

#include "lib/base/failure.h"
#include "lib/base/strings.h"
#include "services/scheduler/event_log.h"
#include "tests/unit/scheduler/cluster_fixture.h"

namespace addend {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

class EventsTest : public ClusterTest {
 protected:
  // "lost a: job 'a': node 1 ..." for each event.
  std::vector<std::string> Events(const std::string& job = "") {
    v1::GetStatusRequest request;
    request.set_job(job);
    const v1::GetStatusResponse status = membership_->GetStatus(now_, request);
    std::vector<std::string> lines;
    for (const v1::Event& event : status.events()) {
      lines.push_back(event.kind() + " " + event.job() + ": " + event.text());
    }
    return lines;
  }
  void Tell(const FakeNode& node, const std::string& kind, const std::string& text, double age_s,
            uint32_t generation) {
    v1::HeartbeatRequest beat;
    *beat.mutable_member() = node.member();
    beat.set_generation(generation);
    v1::Incident* incident = beat.add_incidents();
    incident->set_kind(kind);
    incident->set_text(text);
    incident->set_age_s(age_s);
    const auto [status, decision] = membership_->Heartbeat(now_, beat);
    ASSERT_TRUE(status.ok());
    EXPECT_THAT(decision.reasons, testing::ElementsAre(HasSubstr(text.substr(0, 100))));
  }
  // A job whose machines and CPU server are connected with 10 Gbit/s.
  std::vector<FakeNode*> JobWithBandwidth() {
    AddCpuServer(0, 10e9);
    std::vector<FakeNode*> nodes = AddJob("a", 3);
    for (FakeNode* node : nodes) {
      node->info.set_bandwidth_bps(10e9);
      EXPECT_TRUE(Register(node).ok());
    }
    return nodes;
  }
  // All nodes send half of their contributions' bytes, and their results raw.
  void SendHalf(const std::vector<FakeNode*>& nodes) {
    sent_ += uint64_t{1} << 30;
    for (const FakeNode* node : nodes) {
      v1::HeartbeatRequest beat;
      *beat.mutable_member() = node->member();
      beat.set_generation(node->generation);
      beat.mutable_wire_bytes()->set_contribution_bytes(sent_);
      beat.mutable_wire_bytes()->set_contribution_wire_bytes(sent_ / 2);
      beat.mutable_wire_bytes()->set_result_bytes(sent_);
      beat.mutable_wire_bytes()->set_result_wire_bytes(sent_);
      auto [status, decision] = membership_->Heartbeat(now_, beat);
      ASSERT_TRUE(status.ok());
      Apply(std::move(decision));
    }
  }
  double OptimumToldTo(const FakeNode& node) const {
    return node.updates.back().optimal_s_per_byte();
  }
  uint64_t sent_ = 0;
};

TEST_F(EventsTest, MembersComeAndGoWithReasons) {
  FakeServer& leaves = AddCpuServer();
  FakeServer& dies = AddCpuServer();
  AddJob("a", 2);
  Leave(&leaves);
  Kill(&dies);
  Pass(absl::Seconds(10));
  EXPECT_THAT(Events(), Contains(AllOf(HasSubstr("joined : server 1"), HasSubstr("has joined"))));
  EXPECT_THAT(Events(), Contains(HasSubstr("joined a: node 1 (on gpu1) has joined job 'a'")));
  EXPECT_THAT(Events(), Contains(HasSubstr("left : server 1")));
  EXPECT_THAT(Events(), Contains(AllOf(HasSubstr("lost : server 2"), HasSubstr("was lost: "))));
  const MembershipSummary summary = membership_->Summary();
  EXPECT_EQ(summary.lost.cpu_servers, 1u);
  EXPECT_EQ(summary.lost.nodes, 0u);
  EXPECT_EQ(summary.events.at("lost"), 1u);
}

TEST_F(EventsTest, ColocatedServerHasNoEventOfItsOwn) {
  const auto nodes = AddJob("a", 2);
  EXPECT_THAT(Events(), Not(Contains(HasSubstr("server"))));
  Kill(nodes[1]);
  Pass(absl::Seconds(10));
  EXPECT_THAT(Events(), Contains(HasSubstr("lost a: job 'a': node 1 (on gpu1, rank 1) was lost")));
  EXPECT_THAT(Events(), Contains(HasSubstr("failed a: job 'a' failed in generation 1")));
  const MembershipSummary summary = membership_->Summary();
  EXPECT_EQ(summary.lost.nodes, 1u);
  EXPECT_EQ(summary.lost.colocated_servers, 1u);
}

TEST_F(EventsTest, PlansGiveTheirReason) {
  const auto nodes = AddJob("a", 2);
  DeclareAll(nodes, {Tensor("w", {100'000})});
  FakeServer& joined = AddCpuServer();
  FakeServer& second = AddCpuServer();
  ASSERT_TRUE(Drain(joined).ok());
  Kill(&second);
  Pass(absl::Seconds(10));
  EXPECT_THAT(Events(), Contains(AllOf(HasSubstr("planned a: "), HasSubstr("2 colocated"))));
  EXPECT_THAT(Events(), Contains(HasSubstr("because a server has joined")));
  EXPECT_THAT(Events(), Contains(HasSubstr("because a server is being drained")));
  EXPECT_THAT(Events(), Contains(HasSubstr("drained : server")));
  EXPECT_THAT(Events(), Contains(AllOf(HasSubstr("new owners"), HasSubstr("was lost"))));
  const auto changes = membership_->Summary().plan_changes;
  EXPECT_EQ(changes.at(PlanReason::kDeclare), 1u);
  EXPECT_EQ(changes.at(PlanReason::kJoin), 2u);
  EXPECT_EQ(changes.at(PlanReason::kDrain), 1u);
  EXPECT_EQ(changes.at(PlanReason::kLoss), 1u);
  EXPECT_FALSE(changes.contains(PlanReason::kPace));
}

TEST_F(EventsTest, EncodedPayloadsChangeThePlanOnce) {
  const auto nodes = JobWithBandwidth();
  DeclareAll(nodes, {Tensor("w", {1'000'000})});
  const double told = OptimumToldTo(*nodes[0]);
  const v1::JobStatus before = Status().jobs(0);
  EXPECT_EQ(before.contribution_ratio(), 1);
  EXPECT_EQ(before.t_opt_encoded_s(), 0) << "not measured yet";
  for (int i = 0; i < 20; ++i) {
    SendHalf(nodes);
    Pass(absl::Seconds(1));
    FollowMoves();
  }
  EXPECT_THAT(Events(), Contains(HasSubstr("contributions take 0.5 and results 1 bytes")));
  EXPECT_THAT(Events(),
              Contains(HasSubstr("because payloads take another number of bytes on the wire")));
  EXPECT_EQ(membership_->Summary().plan_changes.at(PlanReason::kEncoding), 1u);
  const v1::JobStatus job = Status().jobs(0);
  EXPECT_EQ(job.contribution_ratio(), 0.5);
  EXPECT_EQ(job.result_ratio(), 1);
  EXPECT_EQ(job.t_opt_s(), before.t_opt_s());
  // n = 3, k = 1, q = 1/2: a = 0, so (c+r) n (n-1) / n^2 in place of 2 n (n-1) / (n^2 + 1).
  EXPECT_NEAR(job.t_opt_encoded_s() / job.t_opt_s(), (1.5 * 6 / 9) / (12.0 / 10), 1e-6);
  EXPECT_EQ(OptimumToldTo(*nodes[0]), told) << "nodes measure themselves by raw bytes";
  for (const FakeNode* node : nodes) Idle(*node);
  EXPECT_EQ(Status().jobs(0).contribution_ratio(), 1) << "another generation";
}

TEST_F(EventsTest, GenerationsBeginAndEnd) {
  const auto nodes = AddJob("a", 2);
  for (const FakeNode* node : nodes) Idle(*node);
  EXPECT_THAT(Events(), Contains(HasSubstr("generation a: job 'a' is ready")));
  EXPECT_THAT(Events(), Contains(HasSubstr("generation a: job 'a' begins generation 2")));
  for (FakeNode* node : nodes) Leave(node);
  EXPECT_THAT(Events(), Contains("left a: job 'a' has ended"));
}

TEST_F(EventsTest, LastEventsAreKeptUnderTheirNumbers) {
  EventLog log;
  for (size_t i = 1; i <= EventLog::kLastEvents + 7; ++i) {
    log.Add(now_ + absl::Seconds(i), event_kind::kJoined, "", "text");
  }
  ASSERT_EQ(log.events().size(), EventLog::kLastEvents);
  EXPECT_EQ(log.events().front().number(), 8u);
  EXPECT_EQ(log.events().back().number(), EventLog::kLastEvents + 7);
  EXPECT_EQ(log.counts().at("joined"), EventLog::kLastEvents + 7);
  EXPECT_DOUBLE_EQ(log.events().front().unix_s(), absl::ToUnixSeconds(now_) + 8.0);
}

TEST_F(EventsTest, LongTextsAreCutBetweenCharacters) {
  EventLog log;
  v1::Incident incident;
  std::string text = "x";
  for (int i = 0; i < 400; ++i) text += "\xc3\xa4";
  incident.set_text(text);
  log.AddIncident(now_, incident, "");
  const std::string& kept = log.events().front().text();
  EXPECT_LE(kept.size(), EventLog::kMaxTextBytes);
  EXPECT_EQ(kept, text.substr(0, kept.size() - 3) + "...");
  EXPECT_EQ(kept.size() % 2, 0u) << "x, pairs of bytes, three dots";
}

TEST_F(EventsTest, UnknownKindCountsAsIncident) {
  EventLog log;
  v1::Incident incident;
  incident.set_kind("joined");
  log.AddIncident(now_, incident, "a");
  incident.set_kind("stall");
  log.AddIncident(now_, incident, "a");
  EXPECT_EQ(log.events()[0].kind(), "incident");
  EXPECT_EQ(log.events()[1].kind(), "stall");
}

TEST_F(EventsTest, JobSeesItsOwnEventsAndThoseOfTheCluster) {
  AddCpuServer();
  AddJob("a", 1);
  AddJob("b", 1);
  EXPECT_THAT(Events("a"), Contains(HasSubstr("joined a")));
  EXPECT_THAT(Events("a"), Contains(HasSubstr("joined : server")));
  EXPECT_THAT(Events("a"), Not(Contains(HasSubstr("joined b"))));
}

TEST_F(EventsTest, FirstNonfiniteIsTheEarliestOfItsGeneration) {
  const auto nodes = AddJob("a", 2);
  EXPECT_EQ(Status().jobs(0).first_nonfinite(), "");
  Tell(*nodes[0], "nonfinite", "a former generation's", 9, 0);
  EXPECT_EQ(Status().jobs(0).first_nonfinite(), "");
  Tell(*nodes[0], "nonfinite", "second", 1, 1);
  EXPECT_EQ(Status().jobs(0).first_nonfinite(), "") << "the other node may have been earlier";
  Tell(*nodes[1], "nonfinite", "first", 5, 1);
  Tell(*nodes[1], "nonfinite", "third", 0, 1);
  Tell(*nodes[1], "stall", "something else", 60, 1);
  EXPECT_EQ(Status().jobs(0).first_nonfinite(), "") << "the other node's may have been under way";
  Tell(*nodes[0], "stall", "something else again", 60, 1);
  EXPECT_EQ(Status().jobs(0).first_nonfinite(), "first");
  EXPECT_THAT(Events("a"), Contains("nonfinite a: third"));
  for (const FakeNode* node : nodes) Idle(*node);
  EXPECT_EQ(Status().jobs(0).first_nonfinite(), "") << "the next generation";
}

TEST_F(EventsTest, InvalidAgeOfAnIncidentCountsAsZero) {
  const auto nodes = AddJob("a", 2);
  Tell(*nodes[0], "stall", "nan", std::numeric_limits<double>::quiet_NaN(), 1);
  Tell(*nodes[0], "stall", "infinite", std::numeric_limits<double>::infinity(), 1);
  const v1::GetStatusResponse status = Status();
  const int last = status.events_size() - 1;
  EXPECT_DOUBLE_EQ(status.events(last - 1).unix_s(), status.now_unix_s());
  EXPECT_DOUBLE_EQ(status.events(last).unix_s(), status.now_unix_s() - 86'400);
}

TEST_F(EventsTest, RoundTimesAreShownForTheirGenerationOnly) {
  const auto nodes = AddJob("a", 1);
  v1::HeartbeatRequest beat;
  *beat.mutable_member() = nodes[0]->member();
  beat.mutable_rounds()->set_rounds(7);
  beat.set_generation(1);
  ASSERT_TRUE(membership_->Heartbeat(now_, beat).answer.ok());
  EXPECT_EQ(Status().jobs(0).nodes(0).rounds().rounds(), 7u);
  Idle(*nodes[0]);
  EXPECT_EQ(Status().jobs(0).nodes(0).rounds().rounds(), 0u);
}

TEST_F(EventsTest, NodesAreToldTheOptimumOfThePlanInForce) {
  const auto nodes = JobWithBandwidth();
  DeclareAll(nodes, {Tensor("w", {100'000})});
  const v1::JobStatus job = Status().jobs(0);
  ASSERT_GT(job.t_opt_s(), 0);
  for (const FakeNode* node : nodes) {
    EXPECT_NEAR(OptimumToldTo(*node), job.t_opt_s() / static_cast<double>(job.tensor_bytes()),
                1e-18);
  }
  const double before = OptimumToldTo(*nodes[0]);
  AddCpuServer(0, 10e9);
  EXPECT_LT(OptimumToldTo(*nodes[0]), before) << "a further server makes the rounds shorter";
  const double with_two = OptimumToldTo(*nodes[0]);
  Watch(nodes[0]);
  EXPECT_TRUE(nodes[0]->updates.back().full());
  EXPECT_EQ(OptimumToldTo(*nodes[0]), with_two);
  Restart();
  EXPECT_EQ(OptimumToldTo(*nodes[0]), with_two);
}

TEST_F(EventsTest, FormerOptimumHoldsDuringAChange) {
  const auto nodes = JobWithBandwidth();
  DeclareAll(nodes, {Tensor("w", {100'000})});
  const double before = OptimumToldTo(*nodes[0]);
  for (FakeNode* node : nodes) node->acks = false;
  AddCpuServer(0, 10e9);
  ASSERT_NE(nodes[0]->change, 0u);
  EXPECT_EQ(OptimumToldTo(*nodes[0]), before);
  for (FakeNode* node : nodes) node->acks = true;
  FollowMoves();
  EXPECT_LT(OptimumToldTo(*nodes[0]), before);
}

TEST_F(EventsTest, OptimumIsUnknownWithoutBandwidths) {
  AddCpuServer();
  const auto nodes = AddJob("a", 3);
  DeclareAll(nodes, {Tensor("w", {100'000})});
  EXPECT_EQ(OptimumToldTo(*nodes[0]), 0);
}

TEST_F(EventsTest, ServersAreToldTheNameOfAJob) {
  FakeServer& server = AddCpuServer();
  const auto nodes = AddJob("a", 2);
  DeclareAll(nodes, {Tensor("w", {100'000})});
  EXPECT_EQ(server.updates.back().jobs(0).job_name(), "a");
}

TEST_F(EventsTest, AuditRatesMustAgree) {
  AddNode("a", 0, 2);
  FakeNode node;
  node.info = NodeRequest("a", 1, 2);
  node.info.mutable_settings()->set_audit_one_in(10);
  const absl::Status status = Register(&node);
  EXPECT_EQ(KindOf(status), FailureKind::kMismatch);
  EXPECT_THAT(Message(status), HasSubstr("--audit-one-in of job 'a' is 0"));
}

TEST_F(EventsTest, RecommendedServersAreThoseOfAllJobsThatHaveNotFailed) {
  EXPECT_EQ(Status().recommended_servers(), 0u);
  AddJob("a", 2);
  EXPECT_EQ(Status().recommended_servers(), 0u) << "two machines need nobody";
  const auto four = AddJob("b", 4);
  EXPECT_EQ(Status().recommended_servers(), 4u);
  AddJob("c", 3);
  EXPECT_EQ(Status().recommended_servers(), 7u);
  EXPECT_EQ(membership_->Summary().recommended_servers, 7u);
  Fail(*four[0], "a trainer died");
  EXPECT_EQ(Status().recommended_servers(), 3u);
}

TEST_F(EventsTest, SummaryHasEveryJobAndEveryCpuServer) {
  const auto nodes = JobWithBandwidth();
  AddNode("late", 0, 2);
  DeclareAll(nodes, {Tensor("w", {100'000})});
  const MembershipSummary summary = membership_->Summary();
  ASSERT_EQ(summary.by_job.size(), 2u);
  EXPECT_EQ(summary.by_job[0].name, "a");
  EXPECT_EQ(summary.by_job[0].tensor_bytes, 400'000u);
  EXPECT_GT(summary.by_job[0].t_opt_s, 0);
  EXPECT_EQ(summary.by_job[0].nodes_connected, 3u);
  EXPECT_EQ(summary.by_job[1].nodes_connected, 1u);
  EXPECT_EQ(summary.by_job[1].nodes_expected, 2u);
  ASSERT_EQ(summary.cpu_speeds.size(), 1u);
  EXPECT_EQ(summary.cpu_speeds[0].speed, 1);
}

TEST_F(EventsTest, StatusShowsTheBeginningOfActivityAndLinks) {
  const auto nodes = AddJob("a", 1);
  v1::HeartbeatRequest beat;
  beat.set_activity("\xc3\xa4" + std::string(4000, 'a'));
  beat.set_links(std::string(4000, 'l'));
  for (const v1::MemberId& member : {nodes[0]->member(), ServerOf(*nodes[0])->member()}) {
    *beat.mutable_member() = member;
    ASSERT_TRUE(membership_->Heartbeat(now_, beat).answer.ok());
  }
  const v1::GetStatusResponse status = Status();
  EXPECT_EQ(status.servers(0).activity().size(), 1000u);
  EXPECT_EQ(status.jobs(0).nodes(0).activity().size(), 1000u);
  EXPECT_EQ(status.jobs(0).nodes(0).links().size(), 1000u);
  EXPECT_THAT(status.jobs(0).nodes(0).activity(), testing::StartsWith("\xc3\xa4"
                                                                      "aaa"));
}

// A view of the plan takes as long as the job says that it has nodes.
TEST_F(EventsTest, OptimumIsComputedWhenAllNodesHaveRegistered) {
  AddCpuServer(0, 10e9);
  auto node = NodeRequest("a", 0, 3);
  node.set_bandwidth_bps(10e9);
  v1::WatchRequest watch;
  watch.mutable_member()->set_job_id(membership_->RegisterNode(now_, node).answer->job_id());
  watch.mutable_member()->set_incarnation(node.incarnation());
  watch.mutable_member()->set_key(kKey);
  v1::Announced* const told = watch.add_announced();
  told->set_job_id(watch.member().job_id());
  told->set_generation(5);  // of which the store knows nothing: the plan version changes
  told->set_plan_version(7);
  const auto [status, decision] = membership_->WatchNode(now_, watch, 900);
  ASSERT_TRUE(status.ok());
  ASSERT_EQ(decision.to_nodes.size(), 1u);
  EXPECT_EQ(decision.to_nodes[0].update->plan_version(), 7u);
  EXPECT_EQ(decision.to_nodes[0].update->optimal_s_per_byte(), 0);
}

}  // namespace
}  // namespace addend
