#include "tools/addendctl/network_command.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "lib/status/network_json.h"

namespace addend {
namespace {

// Four hosts in two groups, of which 10.0.0.2 and 10.0.0.4 are the second.
v1::GetNetworkResponse TwoRacks() {
  v1::GetNetworkResponse network;
  network.set_source(v1::GetNetworkResponse::MEASURED);
  network.set_levels(1);
  for (const int host : {1, 3, 2, 4}) {
    v1::NetworkHost* const one = network.add_hosts();
    one->set_address(absl::StrFormat("10.0.0.%d", host));
    one->set_hostname(absl::StrFormat("gpu%d", host));
    one->add_groups(host % 2 == 1 ? 0 : 1);
    one->add_members(absl::StrFormat("node %d of bert", host - 1));
  }
  for (const double latency_s : {42e-6, 21e-6}) {
    v1::NetworkKind* const kind = network.add_kinds();
    kind->set_pairs(3);
    kind->set_latency_s(latency_s);
  }
  network.mutable_kinds(0)->set_bandwidth_bps(25e9);
  network.set_pairs(6);
  return network;
}

v1::GetStatusResponse Bert() {
  v1::GetStatusResponse status;
  v1::JobStatus* const job = status.add_jobs();
  job->set_name("bert");
  job->mutable_settings()->set_num_nodes(4);
  job->mutable_settings()->set_local_size(2);
  for (int node = 0; node < 4; ++node) {
    v1::NodeStatus* const one = job->add_nodes();
    one->set_node_rank(node);
    one->set_hostname(absl::StrFormat("gpu%d", node + 1));
    one->set_control_address(absl::StrFormat("10.0.0.%d:7270", node + 1));
  }
  return status;
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(NetworkTextTest, HostsStandByTheirGroups) {
  const std::string text = NetworkText(TwoRacks());
  EXPECT_TRUE(Has(text, "4 hosts in 2 groups (as measured).")) << text;
  EXPECT_TRUE(Has(text, "hosts of a group")) << text;
  EXPECT_TRUE(Has(text, "21 us")) << text;
  EXPECT_TRUE(Has(text, "25Gbps")) << text;
  EXPECT_LT(text.find("gpu3"), text.find("gpu2"));
  EXPECT_FALSE(Has(text, "SLOW")) << text;
}

TEST(NetworkTextTest, SlowLinksAreNamed) {
  v1::GetNetworkResponse network = TwoRacks();
  v1::SlowNetworkLink* const link = network.add_slow();
  link->set_from("10.0.0.4");
  link->set_bandwidth_bps(1e9);
  link->set_typical_bandwidth_bps(25e9);
  const std::string text = NetworkText(network);
  EXPECT_TRUE(Has(text, "SLOW")) << text;
  EXPECT_TRUE(Has(text, "most hosts")) << text;
  EXPECT_TRUE(Has(NetworkJson(network), R"("to":null)"));
}

TEST(NetworkTextTest, AnEvenNetworkAndNoNetworkAreSaid) {
  v1::GetNetworkResponse network = TwoRacks();
  network.set_levels(0);
  for (auto& host : *network.mutable_hosts()) host.clear_groups();
  EXPECT_TRUE(Has(NetworkText(network), "no groups that are nearer to each other"));
  EXPECT_TRUE(Has(NetworkText({}), "there is no network"));
}

TEST(NetworkJsonTest, WhatIsNotMeasuredIsNull) {
  const std::string json = NetworkJson(TwoRacks());
  EXPECT_TRUE(Has(json, R"("source":"measured","levels":1)")) << json;
  EXPECT_TRUE(Has(json, R"({"pairs":3,"latency_s":0.000021,"bandwidth_bps":null})") ||
              Has(json, R"({"pairs":3,"latency_s":2.1e-05,"bandwidth_bps":null})"))
      << json;
}

TEST(RanksTextTest, HostsOfAJobComeInTheOrderOfNeighbours) {
  const auto text = RanksText(Bert(), TwoRacks(), "bert", "hostfile");
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(*text, "gpu1 slots=2\ngpu3 slots=2\ngpu2 slots=2\ngpu4 slots=2\n");
}

TEST(RanksTextTest, EveryFormatHasTheSameOrder) {
  const auto torchrun = RanksText(Bert(), TwoRacks(), "bert", "torchrun");
  ASSERT_TRUE(torchrun.ok());
  EXPECT_TRUE(Has(*torchrun, "gpu3 --nnodes=4 --nproc-per-node=2 --node-rank=1\n"));
  const auto rankfile = RanksText(Bert(), TwoRacks(), "bert", "rankfile");
  ASSERT_TRUE(rankfile.ok());
  EXPECT_TRUE(Has(*rankfile, "rank 2=gpu3 slot=0\nrank 3=gpu3 slot=1\nrank 4=gpu2 slot=0\n"));
  const auto json = RanksText(Bert(), TwoRacks(), "bert", "json");
  ASSERT_TRUE(json.ok());
  EXPECT_TRUE(Has(*json, R"({"node_rank":1,"hostname":"gpu3","address":"10.0.0.3","slots":2,)"
                         R"("present_node_rank":2})"));
}

TEST(RanksTextTest, HostsThatTheMapDoesNotKnowComeLast) {
  v1::GetNetworkResponse network = TwoRacks();
  network.mutable_hosts()->DeleteSubrange(0, 1);
  const auto text = RanksText(Bert(), network, "bert", "hostfile");
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(*text, "gpu3 slots=2\ngpu2 slots=2\ngpu4 slots=2\ngpu1 slots=2\n");
}

TEST(RanksTextTest, AnotherJobOrFormatIsRefused) {
  EXPECT_TRUE(absl::IsNotFound(RanksText(Bert(), TwoRacks(), "gpt", "hostfile").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(RanksText(Bert(), TwoRacks(), "bert", "yaml").status()));
}

}  // namespace
}  // namespace addend
