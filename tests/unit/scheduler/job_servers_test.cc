#include "services/scheduler/job_servers.h"

#include "services/scheduler/admission.h"
#include "services/scheduler/tokens.h"
#include "tests/unit/scheduler/job_scope_fixture.h"

namespace addend {
namespace {

class JobServersTest : public JobScopeTest {};

TEST_F(JobServersTest, JobMayUseOnlyServersThatItsNodesReachAndThatAreItsOwn) {
  AddNodes(1);
  const ServerId id = AddServer().id;
  EXPECT_EQ(EligibleServers(job_, fleet_).size(), 1u);
  job_.avoided[id] = now_;
  EXPECT_EQ(EligibleServers(job_, fleet_).size(), 0u);
  Server other;
  other.info.set_colocated_job("b");
  EXPECT_FALSE(MayUse(job_, other));
  other.info.set_colocated_job("a");
  EXPECT_TRUE(MayUse(job_, other));
  other.secret_digest = "another secret";
  EXPECT_FALSE(MayUse(job_, other));
}

TEST_F(JobServersTest, DrainingServersAreNotPlannedFor) {
  AddNodes(1);
  AddServer().draining = true;
  AddServer();
  EXPECT_EQ(ViewOf(job_, fleet_, 1).servers.size(), 1u);
}

TEST_F(JobServersTest, JobLimitOfAServerBoundsItsRoomForTheJob) {
  AddNodes(2);
  Server& server = AddServer(1 << 20);
  server.info.set_job_memory_limit_bytes(1 << 18);
  const uint64_t held = Published("w", 5000).owned.at(server.id).accumulator_bytes;
  const PlannerJob view = ViewOf(job_, fleet_, 1);
  EXPECT_EQ(view.servers[0].load.free_bytes, (1 << 18) - held);
  EXPECT_TRUE(view.servers[0].job_limited);
}

TEST(AdmissionTest, MemberIsKnownByItsIncarnationAndKey) {
  v1::RegisterNodeRequest info;
  info.set_incarnation(5);
  info.set_member_key("key");
  v1::MemberId member;
  member.set_incarnation(5);
  member.set_key("key");
  EXPECT_TRUE(SpeaksFor(member, info));
  member.set_key("other");
  EXPECT_FALSE(SpeaksFor(member, info));
  member.set_key("key");
  member.set_incarnation(6);
  EXPECT_FALSE(SpeaksFor(member, info));
}

TEST(TokensTest, TokenIsRenewedAfterHalfItsLifetime) {
  const absl::Time now = absl::FromUnixSeconds(1'700'000'000);
  const Tokens tokens(absl::Hours(1), [&] { return now; });
  Job job;
  Node node;
  EXPECT_TRUE(tokens.IsDue(now, job, node));
  const v1::NodeToken token = tokens.New(now, job, &node);
  EXPECT_EQ(token.expires_unix_s(), absl::ToUnixSeconds(now + absl::Hours(1)));
  EXPECT_FALSE(tokens.IsDue(now + absl::Minutes(29), job, node));
  EXPECT_TRUE(tokens.IsDue(now + absl::Minutes(30), job, node));
  job.current.number = Generation(2);
  EXPECT_TRUE(tokens.IsDue(now, job, node));
}

}  // namespace
}  // namespace addend
