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

TEST_F(JobServersTest, ColocatedServerIsUsedIfItsNodeNamesIt) {
  AddNodes(2);
  Server server;
  server.id = fleet_.NumberFor(0);
  server.info.set_colocated_job("a");
  server.info.set_colocated_node(1);
  const ServerId id = server.id;
  fleet_.Add(std::move(server));
  EXPECT_TRUE(EligibleServers(job_, fleet_).empty()) << "the node has registered without it";
  job_.nodes.at(NodeId(1)).info.set_colocated_server_id(id.value());
  ASSERT_EQ(EligibleServers(job_, fleet_).size(), 1u);
  const PlannerJob view = ViewOf(job_, fleet_, /*jobs=*/3);
  ASSERT_EQ(view.servers.size(), 1u);
  EXPECT_EQ(view.servers[0].node, NodeId(1));
  EXPECT_EQ(view.servers[0].jobs, 1u) << "it sums for no other job";
  job_.current.gone[NodeId(1)] = "lost";
  EXPECT_TRUE(ViewOf(job_, fleet_, 3).servers.empty());
}

TEST_F(JobServersTest, ServerThatARestartedSchedulerHasNotHeardGetsNothingNewWithoutNeed) {
  AddNodes(1);
  Server& server = AddServer();
  server.lease = Leases(absl::Seconds(5), now_).Restored(now_);
  EXPECT_TRUE(ViewOf(job_, fleet_, 1).servers.empty());
  EXPECT_EQ(ViewOf(job_, fleet_, 1, {}, 0, Candidates::kAll).servers.size(), 1u);
  job_.current.plan_servers.insert(server.id);
  EXPECT_EQ(ViewOf(job_, fleet_, 1).servers.size(), 1u) << "it has partitions of the job";
  job_.current.plan_servers.clear();
  server.lease.has_watched = true;
  EXPECT_EQ(ViewOf(job_, fleet_, 1).servers.size(), 1u);
}

TEST_F(JobServersTest, NodesOfAViewAreNumberedWithoutGaps) {
  AddNodes(3);
  for (auto& [rank, node] : job_.nodes) node.info.set_bandwidth_bps(1e9 * (rank.value() + 1));
  job_.current.gone[NodeId(1)] = "lost";
  const PlannerJob view = ViewOf(job_, fleet_, 1);
  EXPECT_EQ(view.nodes, 3u);
  EXPECT_EQ(view.node_bps, (std::vector<double>{1e9, 3e9}));
}

TEST_F(JobServersTest, ViewOfACpuServerHasItsSpeedItsJobsAndItsLoad) {
  AddNodes(2);
  Server& server = AddServer();
  server.info.set_bandwidth_bps(5e9);
  server.info.set_shards(3);
  job_.speeds[server.id] = 0.5;
  job_.current.loads[{}][server.id] = {.bytes = 70, .shards = {70}};
  const PlannerServer seen = ViewOf(job_, fleet_, /*jobs=*/3).servers.at(0);
  EXPECT_EQ(seen.id, server.id);
  EXPECT_FALSE(seen.node.has_value());
  EXPECT_EQ(seen.bandwidth_bps, 5e9);
  EXPECT_EQ(seen.speed, 0.5);
  EXPECT_EQ(seen.jobs, 3u);
  EXPECT_EQ(seen.load.load_bytes, 70u);
  EXPECT_EQ(seen.load.shard_loads, (std::vector<uint64_t>{70, 0, 0}));
  EXPECT_FALSE(seen.job_limited);
}

TEST_F(JobServersTest, RoomOfAServerIsTheSmallerOfBothLimits) {
  AddNodes(1);
  Server& server = AddServer(1 << 18);
  server.info.set_job_memory_limit_bytes(1 << 20);
  const PlannerServer seen = ViewOf(job_, fleet_, 1).servers.at(0);
  EXPECT_EQ(seen.load.free_bytes, uint64_t{1} << 18);
  EXPECT_FALSE(seen.job_limited);
}

TEST_F(JobServersTest, PartitionsAreAsLargeAsTheSettingOrTheSlowestNodeAllows) {
  AddNodes(3);
  AddServer();
  EXPECT_EQ(PartitionSizeOf(job_, fleet_).least(), PartitionSize(4096).least());
  job_.settings.set_partition_bytes(0);
  for (const auto& [rank, bps] : {std::pair{0, 4e9}, {1, 1e9}, {2, 0.0}}) {
    job_.nodes.at(NodeId(rank)).info.set_bandwidth_bps(bps);
  }
  EXPECT_EQ(PartitionSizeOf(job_, fleet_).least(), PartitionSize::Auto(1e9, 1).least());
}

TEST_F(JobServersTest, OnlyPlannedTensorsHavePublishedPartitions) {
  AddNodes(2);
  AddServer();
  const DeclaredTensor& tensor = Published("w", 5000);
  Declared("c", 5000);
  const PublishedPartitions published = PublishedPartitionsOf(job_, {});
  EXPECT_EQ(published.partitions.size(), static_cast<size_t>(tensor.plan.servers_size()));
  EXPECT_EQ(published.agreements,
            std::vector<uint64_t>(published.partitions.size(), tensor.agreement));
}

TEST_F(JobServersTest, ViewOfASetHasItsNodesAndItsPartOfTheSharedMachines) {
  AddNodes(4);
  for (auto& [rank, node] : job_.nodes) node.info.set_bandwidth_bps(1e9);
  Server& server = AddServer();
  server.info.set_bandwidth_bps(1e9);
  server.info.set_shards(2);
  const uint32_t local_size = job_.settings.local_size();
  const auto of_nodes = [&](std::initializer_list<uint32_t> nodes) {
    std::vector<uint32_t> ranks;
    for (const uint32_t node : nodes) ranks.push_back(node * local_size);
    return Participants::Of(ranks, 4 * local_size).value();
  };
  const Participants even = of_nodes({0, 2});
  const Participants odd = of_nodes({1, 3});
  job_.current.loads[even][server.id] = {.bytes = 100, .shards = {100, 0}};
  job_.current.loads[odd][server.id] = {.bytes = 100, .shards = {0, 100}};
  EXPECT_EQ(SetsOf(job_), (std::vector<Participants>{even, odd}));
  const PlannerJob view = ViewOf(job_, fleet_, 1, even);
  EXPECT_EQ(view.node_bps, (std::vector<double>{1e9, 1e9})) << "their links serve no other set";
  EXPECT_EQ(view.servers.at(0).speed, 0.5) << "it serves both sets";
  EXPECT_EQ(view.servers[0].load.load_bytes, 100u);
  EXPECT_EQ(view.servers[0].load.shard_loads, (std::vector<uint64_t>{100, 100}));
  EXPECT_EQ(ViewOf(job_, fleet_, 1, even, /*coming=*/200).servers.at(0).speed, 0.75);
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
