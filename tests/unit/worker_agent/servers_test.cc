// Links to servers: made, lost, made again, and given up.
#include "services/worker_agent/servers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lib/base/failure.h"
#include "lib/transport/rdma/signals.h"
#include "tests/unit/worker_agent/fake_generation.h"

namespace addend {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ServersTest : public ::testing::Test {
 protected:
  // A link to a partition's owner.
  ServerLink* LinkToOwner(uint32_t server) {
    generation_.Declare(Floats("t", 4));
    generation_.Apply(FakeGeneration::PlanOf(6, "t", 4, {server}));
    node_.reports.said.clear();
    return *generation_.servers.LinkTo(server, 0);
  }
  // The servers of a plan with this server alone.
  static google::protobuf::RepeatedPtrField<v1::ServerInfo> OneServer(uint32_t number,
                                                                      uint64_t incarnation = 9) {
    google::protobuf::RepeatedPtrField<v1::ServerInfo> servers;
    *servers.Add() = FakeNode().AddServer(number);
    servers[0].set_incarnation(incarnation);
    return servers;
  }

  FakeNode node_;
  FakeGeneration generation_{&node_};
  Servers& servers_ = generation_.servers;
};

TEST_F(ServersTest, LinkIsMadeOnce) {
  ServerLink* const link = *servers_.LinkTo(2, 3);
  EXPECT_EQ(*servers_.LinkTo(2, 3), link);
  ASSERT_EQ(node_.tcp.attempts.size(), 1u);
  EXPECT_EQ(node_.tcp.attempts.front().address.host, "10.0.0.7");
  EXPECT_EQ(node_.tcp.attempts.front().shard, 3u);
  node_.tcp.Open();
  EXPECT_TRUE(link->open());
  EXPECT_EQ(link->where(), "summation server 2 (b)");
}

TEST_F(ServersTest, ColocatedServerIsReachedInTheProcess) {
  ASSERT_TRUE(servers_.LinkTo(1, 0).ok());
  EXPECT_EQ(node_.inproc.attempts.size(), 1u);
  EXPECT_TRUE(servers_.is_colocated(ServerId(1)));
}

TEST_F(ServersTest, RefusesServersThatCannotBeReached) {
  EXPECT_TRUE(absl::IsInternal(servers_.LinkTo(7, 0).status()));
  node_.directory.servers[2].mutable_endpoints(0)->set_host("127.0.0.1");
  const absl::Status loopback = servers_.LinkTo(2, 0).status();
  EXPECT_THAT(loopback.message(), HasSubstr("advertises 127.0.0.1, which other machines cannot"));
  EXPECT_EQ(KindOf(loopback), FailureKind::kInvalid);
  EXPECT_THAT(servers_.links(), IsEmpty());
}

TEST_F(ServersTest, BrokenLinkIsMadeAgainAtOnce) {
  ServerLink* const link = LinkToOwner(2);
  node_.tcp.Open()->Close(absl::UnavailableError("reset"));
  node_.loop.Settle();
  EXPECT_THAT(generation_.events, ElementsAre("open", "lost"));
  ASSERT_EQ(node_.tcp.attempts.size(), 1u);
  node_.tcp.Open();
  EXPECT_EQ(link->times_open(), 2);
  EXPECT_THAT(node_.reports.said, IsEmpty());
}

TEST_F(ServersTest, ServerThatRefusesConnectionsIsReportedLostOnce) {
  LinkToOwner(2);
  for (int attempt = 0; attempt < 3; ++attempt) {
    ASSERT_EQ(node_.tcp.attempts.size(), 1u);
    node_.tcp.Refuse(absl::UnavailableError("refused"));
    node_.loop.Pass(absl::Milliseconds(100));
  }
  EXPECT_THAT(node_.reports.said, ElementsAre("lost server 2"));
}

TEST_F(ServersTest, ConnectionsThatBreakInTheHandshakeAreReportedTheThirdTime) {
  LinkToOwner(2);
  for (int attempt = 0; attempt < 3; ++attempt) {
    EXPECT_THAT(node_.reports.said, IsEmpty()) << "the path may be at fault";
    ASSERT_EQ(node_.tcp.attempts.size(), 1u);
    node_.tcp.Meet()->Close(absl::UnavailableError("reset"));
    node_.loop.Settle();
    node_.loop.Pass(absl::Milliseconds(100));
  }
  EXPECT_THAT(node_.reports.said, ElementsAre("lost server 2"));
}

TEST_F(ServersTest, ServerThatDoesNotProveItselfIsReportedTheThirdTimeAndTriedFurther) {
  LinkToOwner(2);
  for (int attempt = 0; attempt < 3; ++attempt) {
    EXPECT_THAT(node_.reports.said, IsEmpty()) << "the path may be at fault";
    ASSERT_EQ(node_.tcp.attempts.size(), 1u);
    node_.tcp.Meet()->Close(absl::UnauthenticatedError("a forged frame"));
    node_.loop.Settle();
    node_.loop.Pass(absl::Milliseconds(100));
  }
  EXPECT_THAT(node_.reports.said, ElementsAre("lost server 2"));
  ASSERT_EQ(node_.tcp.attempts.size(), 1u);
  node_.tcp.Open();
  EXPECT_THAT(node_.reports.said, ElementsAre("lost server 2", "reached server 2"));
}

TEST_F(ServersTest, ReportIsTakenBackOnceTheServerIsReached) {
  LinkToOwner(2);
  node_.tcp.Refuse(absl::UnavailableError("refused"));
  node_.loop.Pass(absl::Milliseconds(100));
  node_.tcp.Open();
  EXPECT_THAT(node_.reports.said, ElementsAre("lost server 2", "reached server 2"));
}

TEST_F(ServersTest, ReportsThatStandAreRepeatedToARestartedScheduler) {
  LinkToOwner(2);
  node_.tcp.Refuse(absl::UnavailableError("refused"));
  servers_.ReportAgain();
  EXPECT_THAT(node_.reports.said, ElementsAre("lost server 2", "lost server 2"));
  node_.loop.Pass(absl::Milliseconds(100));
  node_.tcp.Open();
  node_.reports.said.clear();
  servers_.ReportAgain();
  EXPECT_THAT(node_.reports.said, IsEmpty());
}

TEST_F(ServersTest, DisagreementFailsTheGeneration) {
  LinkToOwner(2);
  node_.tcp.Open()->Close(MakeFailure(FailureKind::kVersion, "v9"));
  node_.loop.Settle();
  EXPECT_FALSE(generation_.state.running());
  EXPECT_THAT(node_.reports.said,
              ElementsAre(HasSubstr("failed version: summation server 2"), "beat"));
}

TEST_F(ServersTest, RestartedServerIsReportedLost) {
  LinkToOwner(2);
  node_.tcp.Open(Incarnation(10));
  EXPECT_THAT(generation_.events, ElementsAre("stranger"));
  EXPECT_THAT(node_.reports.said, ElementsAre("lost server 2"));
}

TEST_F(ServersTest, ServerThatLeavesThePlanLosesItsLinks) {
  ServerLink* const link = LinkToOwner(2);
  FakeLink* const wire = node_.tcp.Open();
  servers_.Learn(OneServer(2));
  EXPECT_FALSE(wire->closed.has_value());
  servers_.Learn(OneServer(3));
  EXPECT_TRUE(wire->closed.has_value());
  EXPECT_TRUE(link->given_up());
  node_.loop.Settle();
  EXPECT_THAT(generation_.events, ElementsAre("open")) << "a link that was given up is not lost";
}

TEST_F(ServersTest, ChangesOfThePlanLeaveTheOtherServersAlone) {
  LinkToOwner(2);
  FakeLink* const wire = node_.tcp.Open();
  servers_.LearnChanges(OneServer(3), {});
  EXPECT_TRUE(servers_.knows(ServerId(2)) && servers_.knows(ServerId(3)));
  EXPECT_FALSE(wire->closed.has_value());
  google::protobuf::RepeatedField<uint32_t> gone;
  gone.Add(2);
  servers_.LearnChanges({}, gone);
  EXPECT_TRUE(wire->closed.has_value());
  EXPECT_FALSE(servers_.knows(ServerId(2)));
  EXPECT_TRUE(servers_.knows(ServerId(3)));
}

TEST_F(ServersTest, NumberOfAnotherProcessLosesItsLinks) {
  LinkToOwner(2);
  FakeLink* const wire = node_.tcp.Open();
  servers_.Learn(OneServer(2, /*incarnation=*/10));
  EXPECT_TRUE(wire->closed.has_value());
}

TEST_F(ServersTest, ServerThatReturnsToThePlanGetsANewLink) {
  ServerLink* const link = LinkToOwner(2);
  node_.tcp.Open();
  servers_.Learn(OneServer(3));
  servers_.Learn(OneServer(2));
  EXPECT_NE(*servers_.LinkTo(2, 0), link);
  node_.loop.Settle();
  node_.directory.DropClosed();
  EXPECT_TRUE(link->given_up()) << "it lives on: plans that are still to come find it as an owner";
  servers_.Retire(absl::CancelledError("the generation is over"));
  EXPECT_EQ(node_.directory.retired.size(), 1u) << "the new link, which is not closed yet";
}

// Tells the servers of lost links alone.
class LostLinkEvents final : public ServerEvents {
 public:
  MutableBytes RoomForResult(const ServerLink*, const FrameHeader&) override { return {}; }
  MutableBytes RoomForStamp(const ServerLink*, const FrameHeader&) override { return {}; }
  void OnStamp(const ServerLink*, const FrameHeader&, Bytes) override {}
  absl::Status OnResult(const ServerLink*, const FrameHeader&, const EncodedBytes&) override {
    return absl::OkStatus();
  }
  void OnSendAgain(const ServerLink*, const FrameHeader&) override {}
  void OnMoved(const ServerLink*, const FrameHeader&) override {}
  void OnRecovered(const ServerLink*, const FrameHeader&) override {}
  void OnAborted(const ServerLink*, const FrameHeader&) override {}
  void OnLinkOpen(ServerLink*, Incarnation) override {}
  void OnLinkLost(ServerLink* link, const absl::Status& why) override {
    servers->OnLost(link, why);
  }
  Servers* servers = nullptr;
};

TEST_F(ServersTest, FailedRdmaFallsBackToTcp) {
  FakeTransport rdma(&node_.loop, &node_.identity, "rdma");
  NodeContext context = node_.context();
  context.transports.rdma = &rdma;
  LostLinkEvents events;
  Servers servers(context, &generation_.tensors, &generation_.state, &events);
  events.servers = &servers;
  ServerLink* const link = *servers.LinkTo(2, 0);
  // The route to this server is TCP; the link was made over RDMA before.
  node_.tcp.Refuse(absl::CancelledError("not used"));
  link->Connect(&rdma, {}, "", absl::Seconds(1));
  rdma.Refuse(rdma::PathFailure(absl::UnavailableError("the port is down")));
  EXPECT_EQ(node_.counters.rdma_fallbacks, 1u);
  node_.loop.Pass(absl::Milliseconds(100));
  EXPECT_FALSE(node_.tcp.attempts.empty());
  EXPECT_THAT(node_.incidents.Take().at(0).text, HasSubstr("the port is down; trying TCP"));
  servers.Retire(absl::CancelledError("the test ends"));
}

// A node that has a further transport.
class MoreTransportsTest : public ServersTest {
 protected:
  MoreTransportsTest(std::string name, Transport* NodeTransports::*kind)
      : more_(&node_.loop, &node_.identity, std::move(name)),
        reached_(With(kind), &generation_.tensors, &generation_.state, &events_) {
    events_.servers = &reached_;
  }
  ~MoreTransportsTest() override {
    reached_.Retire(absl::CancelledError("the test ends"));
    node_.loop.Settle();
    node_.directory.DropClosed();
  }
  NodeContext With(Transport* NodeTransports::*kind) {
    NodeContext context = node_.context();
    context.transports.*kind = &more_;
    return context;
  }

  FakeTransport more_;
  LostLinkEvents events_;
  Servers reached_;
};

// A node whose links the test makes over RDMA.
class RdmaServersTest : public MoreTransportsTest {
 protected:
  RdmaServersTest() : MoreTransportsTest("rdma", &NodeTransports::rdma) {}
  // The route to this server is TCP; the link is made over RDMA instead.
  ServerLink* LinkOverRdma(uint32_t server) {
    ServerLink* const link = *reached_.LinkTo(server, 0);
    node_.tcp.Refuse(absl::CancelledError("not used"));
    link->Connect(&rdma_, {}, "", absl::Seconds(1));
    node_.loop.Pass(absl::Milliseconds(100));  // of the attempt over TCP nothing is left
    return link;
  }

  FakeTransport& rdma_ = more_;
};

TEST_F(RdmaServersTest, LinkThatIsOnlyBrokenStaysWithRdma) {
  LinkOverRdma(2);
  rdma_.Open()->Close(absl::UnavailableError("reset"));
  node_.loop.Settle();
  EXPECT_EQ(node_.counters.rdma_fallbacks, 0u);
}

TEST_F(RdmaServersTest, OpenLinkWhosePathFailsFallsBackToTcpAtOnce) {
  LinkOverRdma(2);
  rdma_.Open()->Close(rdma::PathFailure(absl::UnavailableError("the port is down")));
  node_.loop.Settle();
  EXPECT_EQ(node_.counters.rdma_fallbacks, 1u);
  EXPECT_EQ(node_.tcp.attempts.size(), 1u);
}

TEST_F(RdmaServersTest, FallbacksOfAServerAreAnIncidentOnce) {
  ServerLink* const link = LinkOverRdma(2);
  rdma_.Refuse(rdma::PathFailure(absl::UnavailableError("the port is down")));
  node_.loop.Settle();
  node_.tcp.Refuse(absl::UnavailableError("refused"));
  link->Connect(&rdma_, {}, "", absl::Seconds(1));
  rdma_.Refuse(rdma::PathFailure(absl::UnavailableError("the port is down")));
  EXPECT_EQ(node_.counters.rdma_fallbacks, 2u);
  EXPECT_EQ(node_.incidents.Take().size(), 1u);
}

TEST_F(RdmaServersTest, ServerWithoutTcpIsTriedAgainWithoutAFallback) {
  LinkOverRdma(2);
  node_.directory.servers[2].clear_endpoints();
  rdma_.Refuse(rdma::PathFailure(absl::UnavailableError("the port is down")));
  EXPECT_EQ(node_.counters.rdma_fallbacks, 0u);
  EXPECT_TRUE(generation_.state.running());
  node_.loop.Pass(absl::Milliseconds(100));
  EXPECT_THAT(generation_.state.why().message(), HasSubstr("there is no way to the summation"))
      << "this node has no RDMA port for another attempt";
}

TEST_F(RdmaServersTest, NodeThatMayUseRdmaAloneDoesNotFallBack) {
  node_.options.transport = TransportMode::kRdma;
  ServerLink link(&node_.identity, &events_, &node_.convoy, ServerId(2), "server 2", 0,
                  [this] { return node_.loop.Now(); });
  link.Connect(&rdma_, {}, "", absl::Seconds(1));
  rdma_.Refuse(rdma::PathFailure(absl::UnavailableError("the port is down")));
  EXPECT_EQ(node_.counters.rdma_fallbacks, 0u);
  EXPECT_TRUE(node_.tcp.attempts.empty());
}

// A node that tries shared memory first.
class SharedMemoryServersTest : public MoreTransportsTest {
 protected:
  SharedMemoryServersTest() : MoreTransportsTest("shm", &NodeTransports::shm) {
    node_.directory.servers[2].set_incarnation(9);
  }

  FakeTransport& shm_ = more_;
};

TEST_F(SharedMemoryServersTest, ServerOfThisMachineIsReachedByTheNameOfItsProcess) {
  ServerLink* const link = *reached_.LinkTo(2, 3);
  ASSERT_EQ(shm_.attempts.size(), 1u);
  EXPECT_EQ(shm_.attempts.front().address.host, "addend-shm1-0000000000000009-3");
  shm_.Open();
  EXPECT_TRUE(link->open());
  EXPECT_EQ(link->reason(), "on the same machine");
  EXPECT_TRUE(node_.tcp.attempts.empty());
}

TEST_F(SharedMemoryServersTest, ServerOfAnotherMachineIsReachedThroughTheNetworkAtOnce) {
  ServerLink* const link = *reached_.LinkTo(2, 0);
  shm_.Refuse(absl::UnavailableError("nobody listens"));
  ASSERT_EQ(node_.tcp.attempts.size(), 1u);
  node_.tcp.Open();
  EXPECT_TRUE(link->open());
  EXPECT_FALSE(link->has_forgotten()) << "nothing was sent in vain";
  EXPECT_EQ(link->open_attempts(), 0);
}

TEST_F(SharedMemoryServersTest, LinkThatBreaksWhileItIsMadeIsMadeThroughTheNetwork) {
  ServerLink* const link = *reached_.LinkTo(2, 0);
  shm_.Meet()->Close(absl::UnavailableError("too many strangers"));
  node_.loop.Settle();
  EXPECT_TRUE(shm_.attempts.empty());
  ASSERT_EQ(node_.tcp.attempts.size(), 1u);
  node_.tcp.Open()->Close(absl::UnavailableError("reset"));
  node_.loop.Settle();
  EXPECT_EQ(link->times_open(), 1);
  EXPECT_TRUE(shm_.attempts.empty()) << "for the rest of the generation";
}

TEST_F(SharedMemoryServersTest, LinkWithoutDescriptorsLeftIsMadeThroughTheNetwork) {
  ASSERT_TRUE(reached_.LinkTo(2, 0).ok());
  shm_.Open()->Close(absl::ResourceExhaustedError("no file descriptor is left"));
  node_.loop.Settle();
  EXPECT_TRUE(generation_.state.running());
  EXPECT_TRUE(shm_.attempts.empty());
  EXPECT_EQ(node_.tcp.attempts.size(), 1u);
}

TEST_F(SharedMemoryServersTest, LinkThatWasOpenIsMadeThereAgain) {
  generation_.Declare(Floats("t", 4));
  ASSERT_TRUE(reached_.LinkTo(2, 0).ok());
  shm_.Open()->Close(absl::UnavailableError("the peer shut down"));
  node_.loop.Settle();
  reached_.ReconnectLater(**reached_.LinkTo(2, 0), /*at_once=*/true);
  node_.loop.Settle();
  EXPECT_EQ(shm_.attempts.size(), 1u);
}

TEST_F(SharedMemoryServersTest, LinkThatIsGivenUpWhileItIsTriedIsNotMadeElsewhere) {
  ServerLink* const link = *reached_.LinkTo(2, 0);
  link->Close(absl::CancelledError("the generation is over"));
  shm_.Refuse(absl::UnavailableError("nobody listens"));
  EXPECT_TRUE(node_.tcp.attempts.empty());
  EXPECT_TRUE(link->closed());
}

TEST_F(ServersTest, EachLinkGetsItsPartOfTheBytesInFlight) {
  SendLimits limits;
  limits.contributions_in_flight = 1000;
  Convoy convoy(limits);
  NodeContext context = node_.context();
  context.convoy = &convoy;
  Servers servers(context, &generation_.tensors, &generation_.state, nullptr);
  const auto tensor = generation_.Declare(Floats("t", 8));
  std::vector<PartitionOwner> owners(4);
  for (PartitionOwner& owner : owners) owner.link = *servers.LinkTo(2, 0);
  owners[3].link = *servers.LinkTo(2, 1);
  tensor->SetPlan(TensorId(6), 2, owners);
  generation_.tensors.EnterPlan(tensor);
  servers.LimitInFlight(2);
  std::vector<FakeLink> wires;
  for (auto& attempt : node_.tcp.attempts) {
    wires.emplace_back(&node_.loop, attempt.sink);
  }
  size_t next = 0;
  for (auto& attempt : node_.tcp.attempts) attempt.connected(&wires[next++]);
  EXPECT_EQ(wires[0].in_flight, SendLimits::kUnlimited) << "the loads have not changed";
  servers.OnOwnersChanged();
  servers.LimitInFlight(2);
  EXPECT_EQ(wires[0].in_flight, 750u);
  EXPECT_EQ(wires[1].in_flight, 250u);
  servers.Retire(absl::CancelledError("the test ends"));
  node_.loop.Settle();
  node_.directory.DropClosed();
}

TEST_F(ServersTest, LinkToAServerThatOwnsNothingIsClosedAfterAMinute) {
  ServerLink* const former = LinkToOwner(2);
  node_.tcp.Open();
  node_.AddServer(3);
  ServerLink* const now = *servers_.LinkTo(3, 0);
  node_.tcp.Open();
  ServerLink* const colocated = *servers_.LinkTo(1, 0);
  for (PartitionOwner& owner : generation_.tensors.by_id().begin()->second->owners) {
    owner.link = now;
  }
  servers_.OnOwnersChanged();
  node_.loop.Pass(absl::Seconds(59));
  servers_.CloseUnused();
  EXPECT_TRUE(former->open());
  node_.loop.Pass(absl::Seconds(1));
  servers_.CloseUnused();
  EXPECT_TRUE(former->given_up());
  EXPECT_TRUE(now->open());
  EXPECT_FALSE(colocated->given_up());
  EXPECT_EQ(servers_.links().size(), 2u);
  ASSERT_TRUE(servers_.LinkTo(2, 0).ok());
  EXPECT_NE(*servers_.LinkTo(2, 0), former) << "made again when it is needed";
}

TEST_F(ServersTest, LostLinkThatIsNotUsedIsTriedUntilTheReportIsWithdrawn) {
  LinkToOwner(2);
  for (int attempt = 0; attempt < 2; ++attempt) {
    node_.tcp.Refuse(absl::UnavailableError("refused"));
    node_.loop.Pass(absl::Milliseconds(100));
  }
  ASSERT_THAT(node_.reports.said, ElementsAre("lost server 2"));
  node_.AddServer(3);
  for (PartitionOwner& owner : generation_.tensors.by_id().begin()->second->owners) {
    owner.link = *servers_.LinkTo(1, 0);
  }
  servers_.OnOwnersChanged();
  node_.loop.Pass(absl::Minutes(1));
  servers_.CloseUnused();
  ASSERT_EQ(node_.tcp.attempts.size(), 1u);
  node_.tcp.Open();
  EXPECT_THAT(node_.reports.said, ElementsAre("lost server 2", "reached server 2"));
}

TEST_F(ServersTest, LinkToTheNextOwnerIsKept) {
  LinkToOwner(2);
  node_.tcp.Open();
  node_.AddServer(3);
  ServerLink* const next = *servers_.LinkTo(3, 0);
  node_.tcp.Open();
  generation_.tensors.by_id().begin()->second->owners[0].next = next;
  servers_.OnOwnersChanged();
  node_.loop.Pass(absl::Minutes(2));
  servers_.CloseUnused();
  EXPECT_FALSE(next->given_up());
  EXPECT_EQ(servers_.links().size(), 2u);
}

}  // namespace
}  // namespace addend
