#include "lib/status/status_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/unit/status/example_status.h"

namespace addend {
namespace {

TEST(StatusJsonTest, ShowsServersWithSharesAndTraffic) {
  const auto json = nlohmann::json::parse(StatusJson(ExampleStatus()));
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
  const auto json = nlohmann::json::parse(NodesJson(ExampleStatus()));
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

// A node with `rounds` rounds, whose last rounds took `recent_s` instead of `optimal_s`.
void AddNode(v1::JobStatus* job, uint64_t rounds, double recent_s, double optimal_s) {
  v1::RoundTimes* times = job->add_nodes()->mutable_rounds();
  times->set_rounds(rounds);
  times->set_recent_s(recent_s);
  times->set_recent_optimal_s(optimal_s);
}

TEST(StatusJsonTest, AJobsEfficiencyIsThatOfTheLastRoundsOfAllItsNodes) {
  v1::JobStatus job;
  AddNode(&job, 500, 2, 1.5);
  AddNode(&job, 10, 1, 0.9);
  EXPECT_DOUBLE_EQ(EfficiencyOf(job).value(), 0.8);
  EXPECT_DOUBLE_EQ(RoundSeconds(job).value(), 0.1) << "20 and 10 rounds";
}

TEST(StatusJsonTest, WithoutRoundsOrBandwidthThereIsNoEfficiency) {
  v1::JobStatus job;
  AddNode(&job, 0, 0, 0);
  EXPECT_FALSE(EfficiencyOf(job));
  EXPECT_FALSE(RoundSeconds(job));
  AddNode(&job, 4, 2, 0);
  EXPECT_FALSE(EfficiencyOf(job)) << "no bandwidth is known";
  EXPECT_DOUBLE_EQ(RoundSeconds(job).value(), 0.5);
}

TEST(StatusJsonTest, NothingIsMoreEfficientThanTheOptimum) {
  v1::JobStatus job;
  AddNode(&job, 4, 1, 1.1);
  EXPECT_EQ(EfficiencyOf(job), 1);
}

TEST(StatusJsonTest, EncodedPayloadsHaveAnOptimumOfTheirOwn) {
  v1::GetStatusResponse status = ExampleStatus();
  v1::JobStatus* const job = status.mutable_jobs(0);
  auto json = nlohmann::json::parse(StatusJson(status))["jobs"][0];
  EXPECT_EQ(json.at("contribution_ratio"), 1.0) << "a scheduler of an earlier version tells none";
  EXPECT_EQ(json.at("result_ratio"), 1.0);
  EXPECT_TRUE(json.at("t_opt_encoded_s").is_null());
  EXPECT_TRUE(json.at("efficiency_encoded").is_null());
  AddNode(job, 4, 1, 1.2);
  job->set_t_opt_s(2);
  job->set_t_opt_encoded_s(1.5);
  job->set_contribution_ratio(0.5);
  job->set_result_ratio(0.75);
  json = nlohmann::json::parse(StatusJson(status))["jobs"][0];
  EXPECT_EQ(json.at("contribution_ratio"), 0.5);
  EXPECT_EQ(json.at("result_ratio"), 0.75);
  EXPECT_EQ(json.at("t_opt_s"), 2.0);
  EXPECT_EQ(json.at("t_opt_encoded_s"), 1.5);
  EXPECT_EQ(json.at("efficiency"), 1.0) << "faster than raw bytes can be";
  EXPECT_NEAR(json.at("efficiency_encoded"), 0.9, 1e-12);
}

TEST(StatusJsonTest, ShowsUnknownValuesAsNull) {
  const auto job = nlohmann::json::parse(StatusJson(ExampleStatus()))["jobs"][0];
  EXPECT_TRUE(job.at("efficiency").is_null());
  EXPECT_TRUE(job.at("round_s").is_null());
  EXPECT_TRUE(job.at("first_nonfinite").is_null());
}

TEST(StatusJsonTest, ShowsEventsInTheirOrderAndTheClock) {
  v1::GetStatusResponse status = ExampleStatus();
  status.set_now_unix_s(1.7e9);
  status.set_recommended_servers(3);
  for (uint64_t number = 7; number < 9; ++number) {
    v1::Event* event = status.add_events();
    event->set_number(number);
    event->set_kind("lost");
    event->set_text("<b>gone</b>");
  }
  status.mutable_events(1)->set_job("train");
  const auto json = nlohmann::json::parse(StatusJson(status));
  EXPECT_EQ(json["now_unix_s"], 1.7e9);
  EXPECT_EQ(json["recommended_servers"], 3);
  ASSERT_EQ(json["events"].size(), 2u);
  EXPECT_EQ(json["events"][0]["number"], 7);
  EXPECT_TRUE(json["events"][0]["job"].is_null());
  EXPECT_EQ(json["events"][1]["job"], "train");
  EXPECT_EQ(json["events"][1]["text"], "<b>gone</b>");
}

TEST(StatusJsonTest, ASchedulerThatStandsByNamesTheLeaderIfItKnowsIt) {
  auto json = nlohmann::json::parse(StandbyJson("0.1.0", "a (process 7)", 1.5));
  EXPECT_EQ(json["standby"], true);
  EXPECT_EQ(json["leader"], "a (process 7)");
  EXPECT_EQ(json["now_unix_s"], 1.5);
  json = nlohmann::json::parse(StandbyJson("0.1.0", "", 0));
  EXPECT_TRUE(json["leader"].is_null());
}

}  // namespace
}  // namespace addend
