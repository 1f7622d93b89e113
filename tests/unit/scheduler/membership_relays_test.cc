// Relays: servers that sum for nodes near them, where machines have places, and how that ends.
#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "lib/member/protocols.h"
#include "services/scheduler/relays.h"
#include "tests/unit/scheduler/cluster_fixture.h"

namespace addend {

void PrintTo(const RelayUnit& unit, std::ostream* out) {
  *out << unit.nodes.first << "+" << unit.nodes.count << " of " << unit.group;
}

namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

RelayUnit Unit(uint32_t first, uint32_t count, uint32_t group) {
  return {.nodes = {.first = first, .count = count}, .group = group};
}

TEST(RelayUnitsTest, GroupsAreCutIntoSpansThatTheTreeHas) {
  EXPECT_THAT(RelayUnitsOf(std::vector<uint32_t>(16, 0)), IsEmpty());
  EXPECT_THAT(RelayUnitsOf({0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1}),
              ElementsAre(Unit(0, 8, 0), Unit(8, 8, 1)));
  EXPECT_THAT(RelayUnitsOf({0, 0, 0, 0, 1, 1, 1, 1, 2, 2}),
              ElementsAre(Unit(0, 4, 0), Unit(4, 4, 1), Unit(8, 2, 2)));
  std::vector<uint32_t> racks(100, 0);
  std::fill(racks.begin() + 70, racks.end(), 1);
  EXPECT_THAT(RelayUnitsOf(racks),
              ElementsAre(Unit(0, 64, 0), Unit(64, 6, 0), Unit(70, 2, 1), Unit(72, 8, 1),
                          Unit(80, 8, 1), Unit(88, 8, 1), Unit(96, 4, 1)));
}

class RelaysTest : public ClusterTest {
 protected:
  RelaysTest() { speaks_ = colocated_speaks_ = OwnProtocols(); }
  // As many nodes in a row at each place.
  std::vector<FakeNode*> AddRacks(uint32_t racks, uint32_t nodes_each) {
    for (uint32_t i = 0; i < racks * nodes_each; ++i) {
      places_.push_back("zone/rack-" + std::to_string(i / nodes_each));
    }
    return AddJob("a", racks * nodes_each);
  }
  // Every node measures its way to the others for so long. Round trips are shorter to the nodes of
  // its own rack.
  void Measure(const std::vector<FakeNode*>& nodes, uint32_t rack_nodes, int seconds) {
    std::map<std::string, uint32_t> racks;
    for (const FakeNode* node : nodes) {
      racks[node->info.control_address()] = node->info.node_rank() / rack_nodes;
    }
    std::map<const FakeNode*, v1::HeartbeatResponse> answers;
    for (int i = 0; i < seconds; ++i) {
      for (const FakeNode* node : nodes) {
        v1::HeartbeatRequest beat;
        *beat.mutable_member() = node->member();
        for (const v1::ProbeTarget& target : answers[node].probe()) {
          v1::Probe& probe = *beat.add_probes();
          probe.set_address(target.address());
          const bool near = racks.at(target.address()) == racks.at(node->info.control_address());
          probe.set_latency_s(near ? 10e-6 : 20e-6);
        }
        answers[node].Clear();
        membership_->ExchangeProbes(now_, beat, &answers[node]);
      }
      Pass(absl::Seconds(1));
    }
  }
  static v1::TensorDescriptor Tensor(const std::string& name, std::vector<int64_t> shape) {
    v1::TensorDescriptor tensor = ClusterTest::Tensor(name, std::move(shape));
    tensor.set_reduction_tree("tree8");
    return tensor;
  }
  bool Relays(const FakeServer& server) const {
    const auto job = server.jobs.find(nodes_[0]->job_id);
    return job != server.jobs.end() && !job->second.relays.empty();
  }
  // Of the servers that live.
  size_t CountRelays() const {
    return static_cast<size_t>(std::count_if(
        servers_.begin(), servers_.end(),
        [this](const auto& server) { return server->watch != 0 && Relays(*server); }));
  }
  // Every node has the same plan, whose owners recover the partitions.
  void ExpectDirect(const std::string& name) {
    std::string plan;
    for (const auto& node : nodes_) {
      if (node->silent) continue;
      const v1::TensorPlan& own = node->plans.at(name);
      if (plan.empty()) plan = own.SerializeAsString();
      EXPECT_EQ(own.SerializeAsString(), plan);
      ASSERT_EQ(own.versions_size(), own.servers_size());
      for (const uint64_t version : own.versions()) EXPECT_GT(version, 0u);
      ExpectHeld(own, node->job_id);
    }
    EXPECT_EQ(CountRelays(), 0u) << Reasons();
  }
};

TEST_F(RelaysTest, NodesContributeToServersOfTheirOwnRack) {
  const auto nodes = AddRacks(2, 8);
  DeclareAll(nodes, {Tensor("w", {100000})});
  for (const FakeNode* node : nodes) {
    const uint32_t rack = node->info.node_rank() / 8;
    std::set<uint32_t> used;
    for (const uint32_t server : node->plans.at("w").servers()) {
      used.insert(server);
      EXPECT_EQ(node->servers.at(server).colocated_node() / 8, rack);
    }
    EXPECT_EQ(used.size(), 8u) << "they share the work";
    EXPECT_FALSE(node->plans.at("w").has_relays());
  }
}

TEST_F(RelaysTest, ARelayKnowsTheOwnerAndTheOwnerTheRelay) {
  const auto nodes = AddRacks(2, 8);
  DeclareAll(nodes, {Tensor("w", {100000})});
  EXPECT_EQ(CountRelays(), 16u);
  for (const auto& server : servers_) {
    const FakeServer::HeldJob& job = server->jobs.at(nodes[0]->job_id);
    const v1::RelayReservation& relay = job.relays.begin()->second;
    ASSERT_EQ(relay.orders_size(), relay.tensor().partitions_size());
    for (const v1::RelayOrder& order : relay.orders()) {
      EXPECT_EQ(order.count(), 8u);
      EXPECT_EQ(order.first(), server->info.colocated_node() / 8 * 8);
      EXPECT_EQ(job.peers.at(order.to()).endpoints_size(), 1);
    }
    const v1::TensorReservation& own = job.tensors.begin()->second;
    EXPECT_EQ(own.relayed_size(), own.partitions_size()) << "of the other rack";
    for (const v1::RelayedSpan& span : own.relayed()) {
      EXPECT_TRUE(job.peers.contains(span.server()));
    }
  }
}

TEST_F(RelaysTest, RacksOfFourPassTheirSumsOnToTheNextFour) {
  const auto nodes = AddRacks(4, 4);
  DeclareAll(nodes, {Tensor("w", {100000})});
  for (const auto& server : servers_) {
    const FakeServer::HeldJob& job = server->jobs.at(nodes[0]->job_id);
    const uint32_t rack = server->info.colocated_node() / 4;
    EXPECT_EQ(job.tensors.empty(), rack % 2 == 0) << "owners are among the last of eight ranks";
    for (const v1::RelayOrder& order : job.relays.begin()->second.orders()) {
      EXPECT_EQ(order.first(), rack / 2 * 8);
      EXPECT_EQ(order.first_node(), rack * 4);
      EXPECT_EQ(order.count(), rack % 2 == 0 ? 4u : 8u);
      EXPECT_EQ(order.before() != 0, rack % 2 == 1);
    }
  }
}

// Racks of five are cut at the eighth rank, so that two runs of nodes have the servers of one rack.
TEST_F(RelaysTest, AServerSumsAPartitionForOneRunOfNodes) {
  const auto nodes = AddRacks(4, 5);
  DeclareAll(nodes, {Tensor("w", {100000})});
  EXPECT_EQ(CountRelays(), 15u) << "the last rack owns";
  for (const auto& server : servers_) {
    if (!Relays(*server)) continue;
    const auto& relay = server->jobs.at(nodes[0]->job_id).relays.begin()->second.tensor();
    const std::set<uint32_t> once(relay.partitions().begin(), relay.partitions().end());
    EXPECT_EQ(once.size(), static_cast<size_t>(relay.partitions_size()));
  }
}

TEST_F(RelaysTest, AChangeOfTheServersKeepsOwnersThere) {
  const auto nodes = AddRacks(4, 4);
  DeclareAll(nodes, {Tensor("w", {100000})});
  const FakeServer& server = AddCpuServer();
  Pass(absl::Seconds(30));
  EXPECT_FALSE(server.jobs.at(nodes[0]->job_id).tensors.empty()) << Reasons();
  for (const auto& other : servers_) {
    if (other->id == server.id || other->info.colocated_node() / 4 % 2 == 1) continue;
    EXPECT_TRUE(other->jobs.at(nodes[0]->job_id).tensors.empty());
  }
}

// The number of relays of a job has a bound, for all of its tensors together.
TEST_F(RelaysTest, TooManyRelaysAreNone) {
  partition_bytes_ = 512;
  const auto nodes = AddRacks(3, 8);
  DeclareAll(nodes, {Tensor("w", {int64_t{128} * (kMostRelayTurns / 3 + 1)})});
  DeclareAll(nodes, {Tensor("u", {1000})});
  EXPECT_EQ(CountRelays(), 0u);
}

TEST_F(RelaysTest, WithoutPlacesOrWithOneRackTheOwnersGetAllContributions) {
  DeclareAll(AddJob("a", 9), {Tensor("w", {100000})});
  EXPECT_EQ(CountRelays(), 0u);
}

TEST_F(RelaysTest, RacksThatWereMeasuredBeforeTheFirstTensorHaveRelays) {
  const auto nodes = AddJob("a", 16);
  Measure(nodes, 8, 40);
  DeclareAll(nodes, {Tensor("w", {100000})});
  EXPECT_EQ(CountRelays(), 16u);
  for (const FakeNode* node : nodes) {
    for (const uint32_t server : node->plans.at("w").servers()) {
      EXPECT_EQ(node->servers.at(server).colocated_node() / 8, node->info.node_rank() / 8);
    }
  }
}

TEST_F(RelaysTest, RacksThatAreMeasuredLaterChangeNothingInAGeneration) {
  const auto nodes = AddJob("a", 16);
  DeclareAll(nodes, {Tensor("w", {100000})});
  Measure(nodes, 8, 40);
  DeclareAll(nodes, {Tensor("u", {100000})});
  EXPECT_EQ(CountRelays(), 0u);
}

TEST_F(RelaysTest, AnEvenNetworkHasNoRelays) {
  const auto nodes = AddJob("a", 16);
  Measure(nodes, 16, 40);
  DeclareAll(nodes, {Tensor("w", {100000})});
  EXPECT_EQ(CountRelays(), 0u);
}

TEST_F(RelaysTest, BroadcastsAndAsynchronousTensorsHaveNoRelays) {
  const auto nodes = AddRacks(2, 8);
  v1::TensorDescriptor broadcast = Tensor("b", {1000}), latest = Tensor("l", {1000});
  broadcast.set_op(v1::BROADCAST);
  latest.set_op(v1::ACCUMULATE);
  DeclareAll(nodes, {broadcast, latest});
  EXPECT_EQ(CountRelays(), 0u);
}

TEST_F(RelaysTest, OlderServersTakeNoSums) {
  speaks_.mutable_frame()->set_newest(6);
  AddCpuServer();
  speaks_ = OwnProtocols();
  DeclareAll(AddRacks(2, 8), {Tensor("w", {100000})});
  EXPECT_EQ(CountRelays(), 0u);
}

TEST_F(RelaysTest, OwnersRecoverEverythingWhenARelayIsLost) {
  FakeServer& server = AddCpuServer();
  const auto nodes = AddRacks(2, 8);
  DeclareAll(nodes, {Tensor("w", {100000}), Tensor("u", {7000})});
  ASSERT_GT(CountRelays(), 0u);
  Kill(&server);
  Pass(absl::Seconds(10));
  ExpectDirect("w");
  ExpectDirect("u");
  EXPECT_EQ(nodes[0]->state, v1::READY);
  DeclareAll(nodes, {Tensor("v", {100000})});
  EXPECT_EQ(CountRelays(), 0u) << "not in this generation";
}

TEST_F(RelaysTest, TheEndOfAnotherJobEndsNoRelays) {
  const auto nodes = AddRacks(2, 8);
  DeclareAll(nodes, {Tensor("w", {100000})});
  const auto others = AddJob("b", 2);
  for (FakeNode* const node : others) {
    FakeServer* const server = ServerOf(*node);
    Leave(node);
    Leave(server);
  }
  EXPECT_EQ(CountRelays(), 16u) << Reasons();
}

TEST_F(RelaysTest, TheOthersGoOnWithoutRelaysWhenANodeIsLost) {
  on_node_loss_ = "shrink";
  const auto nodes = AddRacks(2, 8);
  DeclareAll(nodes, {Tensor("w", {100000})});
  Kill(nodes[3]);
  Pass(absl::Seconds(10));
  EXPECT_EQ(nodes[0]->state, v1::READY) << Reasons();
  ExpectDirect("w");
}

TEST_F(RelaysTest, ARelayThatCannotSendItsSumsEndsThem) {
  const auto nodes = AddRacks(2, 8);
  DeclareAll(nodes, {Tensor("w", {100000})});
  ReportTrouble(*servers_[0], nodes[0]->job_id + 1, *servers_[12]);
  EXPECT_GT(CountRelays(), 0u) << "of another job";
  ReportTrouble(*servers_[0], nodes[0]->job_id, *servers_[12]);
  ExpectDirect("w");
  EXPECT_THAT(Reasons(), HasSubstr("nobody answers there"));
}

TEST_F(RelaysTest, AServerThatIsDrainedRelaysNoMore) {
  places_ = std::vector<std::string>(8, "rack-0");
  places_.resize(16, "rack-1");
  std::vector<FakeServer*> servers;
  for (const char* rack : {"rack-0", "rack-1"}) {
    servers.push_back(&AddCpuServer());
    servers.back()->info.set_place(rack);
    ASSERT_TRUE(Register(servers.back()).ok());
    Watch(servers.back());
  }
  const auto nodes = AddJob("a", 16, /*colocated=*/false);
  DeclareAll(nodes, {Tensor("w", {200000})});
  ASSERT_TRUE(Relays(*servers[1]));
  ASSERT_TRUE(Drain(*servers[1]).ok());
  Pass(absl::Seconds(30));
  EXPECT_TRUE(servers[1]->drained) << Reasons();
  EXPECT_EQ(nodes[0]->state, v1::READY);
  EXPECT_EQ(CountRelays(), 0u);
}

TEST_F(RelaysTest, ARestartedSchedulerKnowsItsRelays) {
  const auto nodes = AddRacks(2, 8);
  DeclareAll(nodes, {Tensor("w", {100000})});
  const std::string plan = nodes[3]->plans.at("w").SerializeAsString();
  Restart();
  EXPECT_EQ(nodes[3]->plans.at("w").SerializeAsString(), plan);
  EXPECT_EQ(CountRelays(), 16u);
  Kill(servers_[0].get());
  Pass(absl::Seconds(10));
  EXPECT_THAT(Reasons(), HasSubstr("without relays"));
}

TEST_F(RelaysTest, ASchedulerWithoutRecordsGoesOnWithoutRelays) {
  const auto nodes = AddRacks(2, 8);
  DeclareAll(nodes, {Tensor("w", {100000})});
  RestartWithoutStore();
  AllComeBack();
  EXPECT_EQ(nodes[0]->state, v1::READY) << Reasons();
  ExpectDirect("w");
}

TEST_F(RelaysTest, ATensorForWhichARelayHasNoRoomHasNone) {
  const auto nodes = AddRacks(2, 8);
  servers_[5]->capacity_for_relays = 0;
  DeclareAll(nodes, {Tensor("w", {100000})});
  EXPECT_THAT(nodes[0]->plans, Not(IsEmpty())) << Reasons();
  EXPECT_EQ(CountRelays(), 0u);
}

}  // namespace
}  // namespace addend
