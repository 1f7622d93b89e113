// The choice between TCP and RDMA.
#include "services/worker_agent/route.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lib/base/failure.h"
#include "lib/base/strings.h"
#include "lib/server/link_signals.h"

namespace addend {
namespace {

using testing::HasSubstr;

rdma::PortAddress Port(const std::string& device, uint8_t last,
                       rdma::Fabric fabric = rdma::Fabric::kRoceV2) {
  rdma::PortAddress port{.device = device, .fabric = fabric, .gid = {}, .lid = 0, .mtu_bytes = 0};
  port.gid[10] = port.gid[11] = 0xff;
  port.gid[15] = last;
  return port;
}

v1::ServerInfo Server(bool tcp, const std::vector<rdma::PortAddress>& ports) {
  v1::ServerInfo server;
  server.set_hostname("far");
  if (tcp) {
    v1::DataEndpoint* const endpoint = server.add_endpoints();
    endpoint->set_transport("tcp");
    endpoint->set_host("far");
    endpoint->set_port(7171);
  }
  for (const auto& port : ports) {
    v1::DataEndpoint* const endpoint = server.add_endpoints();
    endpoint->set_transport("rdma");
    endpoint->set_host("far");
    endpoint->set_port(7170);
    *endpoint->mutable_rdma() = ToProto(port);
  }
  return server;
}

RouteChoice Choice(TransportMode mode, std::vector<rdma::PortAddress> ports) {
  return {.mode = mode, .ports = std::move(ports), .why_no_ports = "there is no device"};
}

TEST(Route, RdmaIsChosenWhereBothEndsReachEachOther) {
  const auto route = ChooseRoute(Choice(TransportMode::kAuto, {Port("a:1", 1)}),
                                 Server(true, {Port("b:1", 2)}), "");
  ASSERT_TRUE(route.ok()) << route.status();
  EXPECT_TRUE(route->rdma);
  EXPECT_EQ(route->address.port, 7170);
  EXPECT_EQ(route->reason, "a:1 to its b:1");
}

struct Case {
  TransportMode mode;
  std::vector<rdma::PortAddress> here, there;
  std::string failure;
  std::string why;
};
class TcpRoute : public testing::TestWithParam<Case> {};

TEST_P(TcpRoute, IsTakenAndSaysWhy) {
  const Case& c = GetParam();
  const auto route = ChooseRoute(Choice(c.mode, c.here), Server(true, c.there), c.failure);
  ASSERT_TRUE(route.ok()) << route.status();
  EXPECT_FALSE(route->rdma);
  EXPECT_EQ(route->address.port, 7171);
  EXPECT_THAT(route->reason, HasSubstr(c.why));
}
INSTANTIATE_TEST_SUITE_P(
    Route, TcpRoute,
    testing::Values(
        Case{TransportMode::kTcp, {Port("a:1", 1)}, {Port("b:1", 2)}, "", "--transport=tcp"},
        Case{TransportMode::kAuto, {}, {Port("b:1", 2)}, "", "there is no device"},
        Case{TransportMode::kAuto, {Port("a:1", 1)}, {}, "", "the server has none"},
        Case{TransportMode::kAuto,
             {Port("a:1", 1)},
             {Port("b:1", 2, rdma::Fabric::kInfiniBand)},
             "",
             "a:1 is a port of RoCEv2"},
        Case{TransportMode::kAuto, {Port("a:1", 1)}, {Port("b:1", 1)}, "", "behind the same NIC"},
        Case{TransportMode::kAuto, {Port("a:1", 1)}, {Port("b:1", 2)}, "it broke", "it broke"}));

TEST(Route, AnyPairOfDifferentNicsWillDo) {
  const auto route = ChooseRoute(Choice(TransportMode::kAuto, {Port("a:1", 1), Port("a:2", 2)}),
                                 Server(true, {Port("b:1", 1), Port("b:2", 2)}), "");
  ASSERT_TRUE(route.ok()) << route.status();
  EXPECT_TRUE(route->rdma);
}

TEST(Route, TransportRdmaNeverFallsBackToTcp) {
  const Case failing[] = {{TransportMode::kRdma, {}, {Port("b:1", 2)}, "", "there is no device"},
                          {TransportMode::kRdma, {Port("a:1", 1)}, {}, "", "the server has none"}};
  for (const Case& c : failing) {
    const auto route = ChooseRoute(Choice(c.mode, c.here), Server(true, c.there), "");
    EXPECT_EQ(KindOf(route.status()), FailureKind::kInvalid);
    EXPECT_THAT(Message(route.status()), HasSubstr(c.why));
  }
  const auto again = ChooseRoute(Choice(TransportMode::kRdma, {Port("a:1", 1)}),
                                 Server(true, {Port("b:1", 1)}), "it broke");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->rdma) << "also where it broke before, and behind one NIC";
}

TEST(Route, FailedRdmaIsTriedAgainWithoutTcp) {
  const auto server = Server(false, {Port("b:1", 2)});
  EXPECT_FALSE(TakesTcp(server));
  EXPECT_TRUE(TakesTcp(Server(true, {})));
  const auto route =
      ChooseRoute(Choice(TransportMode::kAuto, {Port("a:1", 1)}), server, "it broke");
  ASSERT_TRUE(route.ok()) << route.status();
  EXPECT_TRUE(route->rdma);
}

TEST(Route, ServerThatTakesOnlyRdmaNeedsRdmaHere) {
  const auto route =
      ChooseRoute(Choice(TransportMode::kTcp, {}), Server(false, {Port("b:1", 2)}), "");
  EXPECT_EQ(KindOf(route.status()), FailureKind::kInvalid);
  EXPECT_THAT(Message(route.status()), HasSubstr("far"));
}

}  // namespace
}  // namespace addend
