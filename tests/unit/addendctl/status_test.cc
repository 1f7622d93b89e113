#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tools/addendctl/status_json.h"
#include "tools/addendctl/status_table.h"

namespace addend {
namespace {

using ::testing::HasSubstr;

// One CPU server and one colocated server that have summed 3:1 for a job of one node.
v1::GetStatusResponse Example() {
  v1::GetStatusResponse status;
  status.set_version("0.1.0");
  status.set_store("memory");
  auto* cpu = status.add_servers();
  cpu->set_server_id(1);
  cpu->set_incarnation(0xFFFFFFFFFFFFFFFF);
  cpu->set_hostname("cpu-0");
  cpu->mutable_traffic()->set_payload_bytes_summed(3000);
  cpu->set_memory_limit_bytes(8'000'000'000);
  auto* colocated = status.add_servers();
  colocated->set_server_id(2);
  colocated->set_colocated(true);
  colocated->set_job("train");
  colocated->mutable_traffic()->set_payload_bytes_summed(1000);
  auto* job = status.add_jobs();
  job->set_name("train");
  job->set_state(v1::FORMING);
  job->set_reason("waiting for node 1");
  job->mutable_settings()->set_num_nodes(2);
  auto* share = job->add_shares();
  share->set_server_id(1);
  share->set_share(0.75);
  share->set_assigned(0.74);
  auto* node = job->add_nodes();
  node->set_connected(true);
  node->set_hostname("gpu-\xff");  // not UTF-8
  return status;
}

TEST(StatusJsonTest, ShowsServersWithSharesAndTraffic) {
  const auto json = nlohmann::json::parse(StatusJson(Example()));
  const auto& cpu = json["servers"][0];
  EXPECT_EQ(cpu["incarnation"], "18446744073709551615");
  EXPECT_EQ(cpu["traffic_share"], 0.75);
  EXPECT_TRUE(cpu["job"].is_null());
  EXPECT_EQ(cpu["shares"][0]["job"], "train");
  EXPECT_EQ(cpu["shares"][0]["assigned"], 0.74);
  EXPECT_EQ(json["servers"][1]["job"], "train");
  EXPECT_TRUE(json["servers"][1]["shares"].empty());
  EXPECT_EQ(json["jobs"][0]["state"], "forming");
  EXPECT_TRUE(json["jobs"][0]["t_opt_s"].is_null());
}

TEST(StatusJsonTest, NodesNameTheirJob) {
  const auto json = nlohmann::json::parse(NodesJson(Example()));
  ASSERT_EQ(json.size(), 1u);
  EXPECT_EQ(json[0]["job"], "train");
  EXPECT_EQ(json[0]["connected"], true);
  EXPECT_EQ(json[0]["hostname"], "gpu-\xEF\xBF\xBD");
}

TEST(StatusJsonTest, AnEmptyClusterHasEmptyLists) {
  EXPECT_EQ(JobsJson({}), "[]\n");
  EXPECT_EQ(NodesJson({}), "[]\n");
  EXPECT_TRUE(nlohmann::json::parse(StatusJson({}))["servers"].is_array());
}

TEST(StatusTableTest, ShowsWhatMatters) {
  const std::string text = StatusText(Example(), "127.0.0.1:7070");
  EXPECT_THAT(text, HasSubstr("Scheduler 127.0.0.1:7070: version 0.1.0"));
  EXPECT_THAT(text, HasSubstr("Job train: forming (waiting for node 1)"));
  EXPECT_THAT(text, HasSubstr("75.0 %"));
  EXPECT_THAT(text, HasSubstr("0 B of 8 GB"));
  EXPECT_THAT(text, HasSubstr("node 0 of train"));
  EXPECT_THAT(JobsText(Example()), HasSubstr("1 of 2"));
  EXPECT_THAT(NodesText(Example()), HasSubstr("yes"));
}

TEST(StatusTableTest, SaysThatNothingIsThere) {
  EXPECT_EQ(JobsText({}), "No jobs.\n");
  EXPECT_EQ(NodesText({}), "No nodes.\n");
  EXPECT_THAT(StatusText({}, "x:1"), HasSubstr("No summation servers."));
}

}  // namespace
}  // namespace addend
