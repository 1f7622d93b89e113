#include "tools/addendctl/cluster_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace addend {
namespace {

using ::testing::HasSubstr;

MemberFacts Member(const std::string& name, const std::string& host, const std::string& address) {
  return {.name = name,
          .hostname = host,
          .control_address = address + ":7170",
          .data = {{address + ":7171", ""}},
          .bandwidth_bps = 10e9,
          .version = "0.1.0"};
}

SchedulerFacts Scheduler(absl::Status answer, bool refused) {
  SchedulerFacts facts{
      .address = "s:7070", .answer = std::move(answer), .refused = refused, .status = {}};
  if (facts.answer.ok()) facts.status.set_version("0.1.0");
  return facts;
}

TEST(ClusterChecksTest, OneSchedulerThatAnswersIsEnoughIfTheOthersStandBy) {
  const SchedulerFacts leads = Scheduler(absl::OkStatus(), false);
  const SchedulerFacts refused = Scheduler(absl::UnavailableError("connection refused"), true);
  const SchedulerFacts silent = Scheduler(absl::UnavailableError("timed out"), false);
  EXPECT_EQ(CheckSchedulers({leads, refused}).verdict, Verdict::kOk);
  EXPECT_EQ(CheckSchedulers({leads, silent}).verdict, Verdict::kWarning);
  EXPECT_EQ(CheckSchedulers({refused, silent}).verdict, Verdict::kProblem);
}

TEST(ClusterChecksTest, TwoSchedulersThatBothLeadAreAProblem) {
  const SchedulerFacts leads = Scheduler(absl::OkStatus(), false);
  EXPECT_EQ(CheckSchedulers({leads, leads}).verdict, Verdict::kProblem);
}

TEST(ClusterChecksTest, AClockOffsetWithinItsUncertaintyIsOk) {
  SchedulerFacts facts = Scheduler(absl::OkStatus(), false);
  EXPECT_EQ(CheckClock(facts).verdict, Verdict::kNotApplicable);
  facts.status.set_now_unix_s(1e9);
  facts.clock_ahead_s = -3;
  facts.clock_uncertain_s = 0.001;
  EXPECT_EQ(CheckClock(facts).verdict, Verdict::kWarning);
  EXPECT_THAT(CheckClock(facts).found, HasSubstr("3 s behind"));
  facts.clock_uncertain_s = 2.5;
  EXPECT_EQ(CheckClock(facts).verdict, Verdict::kOk);
}

TEST(ClusterChecksTest, MembersOfOtherVersionsAreNamed) {
  std::vector<MemberFacts> members = {Member("server 1", "a", "10.0.0.1"),
                                      Member("server 2", "b", "10.0.0.2")};
  const SchedulerFacts scheduler = Scheduler(absl::OkStatus(), false);
  EXPECT_EQ(CheckVersions("0.1.0", scheduler, members).verdict, Verdict::kOk);
  members[1].version = "0.0.9";
  const Finding finding = CheckVersions("0.1.0", scheduler, members);
  EXPECT_EQ(finding.verdict, Verdict::kWarning);
  EXPECT_THAT(finding.found, HasSubstr("0.0.9: server 2"));
  // Nothing is known of a scheduler that does not answer.
  members[1].control_error = "refused";
  EXPECT_EQ(CheckVersions("0.1.0", scheduler, members).verdict, Verdict::kOk);
}

TEST(ClusterChecksTest, LoopbackIsForClustersOfOneMachine) {
  std::vector<MemberFacts> members = {Member("server 1", "a", "127.0.0.1")};
  EXPECT_EQ(CheckAdvertised("a", members).verdict, Verdict::kOk);
  const Finding finding = CheckAdvertised("b", members);
  EXPECT_EQ(finding.verdict, Verdict::kProblem);
  EXPECT_THAT(finding.found, HasSubstr("server 1 advertises 127.0.0.1:7170"));
}

TEST(ClusterChecksTest, TwoMembersWithOneAddressAreAProblem) {
  const std::vector<MemberFacts> members = {Member("server 1", "a", "10.0.0.1"),
                                            Member("server 2", "b", "10.0.0.1")};
  EXPECT_THAT(CheckAdvertised("a", members).found, HasSubstr("server 1 and server 2"));
  EXPECT_EQ(CheckAdvertised("a", members).verdict, Verdict::kProblem);
  EXPECT_EQ(CheckAdvertised("a", {}).verdict, Verdict::kNotApplicable);
}

TEST(ClusterChecksTest, AMemberIsReachableOnlyWithItsDataPort) {
  MemberFacts member = Member("server 1", "a", "10.0.0.1");
  EXPECT_EQ(CheckReachable(member).verdict, Verdict::kOk);
  member.data[0].error = "Connection timed out";
  EXPECT_EQ(CheckReachable(member).verdict, Verdict::kProblem);
  EXPECT_THAT(CheckReachable(member).found, HasSubstr("10.0.0.1:7171"));
  member.control_error = "refused";
  EXPECT_THAT(CheckReachable(member).found, HasSubstr("control port 10.0.0.1:7170"));
}

TEST(ClusterChecksTest, ALinkFarBelowItsDeclarationIsAWarning) {
  MemberFacts member = Member("server 1", "a", "10.0.0.1");
  EXPECT_EQ(CheckBandwidth(member, false).verdict, Verdict::kNotApplicable);
  EXPECT_EQ(CheckBandwidth(member, true).verdict, Verdict::kNotApplicable);
  member.measured_bps = 0.9e9;
  EXPECT_EQ(CheckBandwidth(member, true).verdict, Verdict::kWarning);
  // gRPC's own limit says nothing against a faster link.
  member.bandwidth_bps = 100e9;
  member.measured_bps = 8e9;
  EXPECT_EQ(CheckBandwidth(member, true).verdict, Verdict::kOk);
  member.bandwidth_bps = 0;
  EXPECT_EQ(CheckBandwidth(member, true).verdict, Verdict::kOk);
}

TEST(ClusterChecksTest, ALinkFarAboveItsDeclarationIsAWarningUnlessItIsLoopback) {
  MemberFacts member = Member("server 1", "a", "10.0.0.1");
  member.bandwidth_bps = 1e9;
  member.measured_bps = 9e9;
  EXPECT_EQ(CheckBandwidth(member, true).verdict, Verdict::kWarning);
  member.control_address = "127.0.0.1:7170";
  EXPECT_EQ(CheckBandwidth(member, true).verdict, Verdict::kOk);
}

TEST(ClusterFactsTest, AnAgentAndItsColocatedServerAreOneMember) {
  v1::GetStatusResponse status;
  v1::ServerStatus* server = status.add_servers();
  server->set_colocated(true);
  server->set_job("train");
  server->set_node_rank(1);
  v1::JobStatus* job = status.add_jobs();
  job->set_name("train");
  for (uint32_t rank = 0; rank < 3; ++rank) {
    v1::NodeStatus* node = job->add_nodes();
    node->set_node_rank(rank);
    node->set_connected(rank < 2);
  }
  const auto members = MembersOf(status);
  ASSERT_EQ(members.size(), 2u);  // node 1 with its server, and node 0; node 2 is not there
  EXPECT_TRUE(members[0].is_agent);
  EXPECT_THAT(members[1].name, HasSubstr("node 0 of train"));
}

}  // namespace
}  // namespace addend
