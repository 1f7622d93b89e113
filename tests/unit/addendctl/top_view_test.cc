#include "tools/addendctl/top_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace addend {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

v1::NodeStatus* AddNode(v1::JobStatus* job, uint32_t rank, uint64_t sent) {
  v1::NodeStatus* node = job->add_nodes();
  node->set_node_rank(rank);
  node->set_incarnation(100 + rank);
  node->set_connected(true);
  node->mutable_traffic()->set_network_bytes_sent(sent);
  node->mutable_traffic()->set_local_bytes(sent);
  return node;
}

// A job of two nodes, a CPU server and a colocated server, after so many bytes.
Sample Example(double at_s, uint64_t bytes) {
  Sample sample{.status = {}, .at_s = at_s};
  v1::GetStatusResponse& status = sample.status;
  status.set_version("0.1.0");
  status.set_now_unix_s(1000);
  for (uint32_t id = 1; id <= 2; ++id) {
    v1::ServerStatus* server = status.add_servers();
    server->set_server_id(id);
    server->set_incarnation(id);
    server->set_hostname("cpu-\u00e4");
    server->set_colocated(id == 2);
    server->set_job("train");
    server->set_speed(1);
    server->mutable_traffic()->set_network_bytes_received(bytes);
    server->mutable_traffic()->set_network_bytes_sent(2 * bytes);
  }
  v1::JobStatus* job = status.add_jobs();
  job->set_name("train");
  job->set_job_id(7);
  job->set_state(v1::READY);
  job->set_tensor_bytes(1000);
  job->mutable_settings()->set_num_nodes(3);
  for (uint32_t id = 1; id <= 2; ++id) {
    v1::ServerShare* share = job->add_shares();
    share->set_server_id(id);
    share->set_assigned(id == 1 ? 0.75 : 0.25);
  }
  for (uint32_t rank = 0; rank < 2; ++rank) {
    v1::RoundTimes* rounds = AddNode(job, rank, bytes)->mutable_rounds();
    rounds->set_rounds(rank == 0 ? 500 : 10);
    rounds->set_recent_s(rank == 0 ? 4 : 2);  // 20 rounds of 0.2 s, 10 of 0.2 s
    rounds->set_recent_optimal_s(rank == 0 ? 3 : 1.5);
  }
  return sample;
}

TEST(TopViewTest, RatesAreDifferencesOverTheTimeBetween) {
  const Sample before = Example(10, 1000);
  const TopView view = MakeTopView(&before, Example(12, 251000));
  EXPECT_DOUBLE_EQ(view.servers[0].in_bps.value(), 1e6);
  EXPECT_DOUBLE_EQ(view.servers[0].out_bps.value(), 2e6);
  EXPECT_DOUBLE_EQ(view.nodes[1].out_bps.value(), 1e6);
  // Two nodes, each over the network and to its own server.
  EXPECT_DOUBLE_EQ(view.jobs[0].pushed_bps.value(), 4e6);
}

TEST(TopViewTest, TheFirstSampleHasNoRates) {
  const TopView view = MakeTopView(nullptr, Example(10, 1000));
  EXPECT_FALSE(view.servers[0].in_bps.has_value());
  EXPECT_FALSE(view.nodes[0].out_bps.has_value());
  EXPECT_FALSE(view.jobs[0].pushed_bps.has_value());
}

TEST(TopViewTest, ARestartedMemberHasNoRate) {
  Sample before = Example(10, 1000);
  before.status.mutable_servers(0)->set_incarnation(99);
  const TopView view = MakeTopView(&before, Example(12, 2000));
  EXPECT_FALSE(view.servers[0].in_bps.has_value());
  EXPECT_TRUE(view.servers[1].in_bps.has_value());
}

TEST(TopViewTest, ACounterThatFellHasNoRate) {
  const Sample before = Example(10, 5000);
  EXPECT_FALSE(MakeTopView(&before, Example(12, 1000)).servers[0].in_bps.has_value());
}

TEST(TopViewTest, RoundTimesAreMeansOfTheNodesLastRounds) {
  const TopJob job = MakeTopView(nullptr, Example(10, 0)).jobs[0];
  EXPECT_DOUBLE_EQ(job.round_s.value(), 0.2);
  EXPECT_DOUBLE_EQ(job.optimal_s.value(), 0.15);
  EXPECT_DOUBLE_EQ(job.efficiency.value(), 0.75);
}

TEST(TopViewTest, TheOptimumOfEncodedBytesIsInProportion) {
  Sample sample = Example(10, 0);
  EXPECT_FALSE(MakeTopView(nullptr, sample).jobs[0].optimal_encoded_s.has_value());
  sample.status.mutable_jobs(0)->set_t_opt_s(3);
  sample.status.mutable_jobs(0)->set_t_opt_encoded_s(2);
  EXPECT_DOUBLE_EQ(MakeTopView(nullptr, sample).jobs[0].optimal_encoded_s.value(), 0.1);
}

TEST(TopViewTest, AJobWithoutRoundsHasNoEfficiency) {
  Sample sample = Example(10, 0);
  for (auto& node : *sample.status.mutable_jobs(0)->mutable_nodes()) node.clear_rounds();
  const TopView view = MakeTopView(nullptr, sample);
  EXPECT_FALSE(view.jobs[0].round_s.has_value());
  EXPECT_FALSE(view.jobs[0].efficiency.has_value());
  EXPECT_FALSE(view.nodes[0].efficiency.has_value());
}

TEST(TopViewTest, CountsNodesAndCpuServersOfAJob) {
  const TopJob job = MakeTopView(nullptr, Example(10, 0)).jobs[0];
  EXPECT_EQ(job.connected, 2u);
  EXPECT_EQ(job.nodes, 3u);
  EXPECT_EQ(job.cpu_servers, 1u);
}

TEST(TopViewTest, AServersShareIsOfTheJobsThatItSumsFor) {
  Sample sample = Example(10, 0);
  v1::JobStatus* other = sample.status.add_jobs();
  other->set_tensor_bytes(3000);
  v1::ServerShare* share = other->add_shares();
  share->set_server_id(1);
  share->set_assigned(0.25);
  const TopView view = MakeTopView(nullptr, sample);
  EXPECT_DOUBLE_EQ(view.servers[0].share, (750.0 + 750.0) / 4000);
  EXPECT_DOUBLE_EQ(view.servers[1].share, 0.25);
}

TEST(TopViewTest, ShowsTheNewestFiveEventsWithTheirAge) {
  Sample sample = Example(10, 0);
  for (int i = 1; i <= 8; ++i) {
    v1::Event* event = sample.status.add_events();
    event->set_number(i);
    event->set_unix_s(1000 - 10 * (8 - i));
    event->set_text("event " + std::to_string(i));
  }
  const TopView view = MakeTopView(nullptr, sample);
  ASSERT_EQ(view.events.size(), 5u);
  EXPECT_EQ(view.events.front().number, 4u);
  EXPECT_DOUBLE_EQ(view.events.front().age_s, 40);
  EXPECT_EQ(view.events.back().text, "event 8");
}

TEST(TopTextTest, ShowsJobsServersNodesAndWhenTheSchedulerWentAway) {
  const Sample before = Example(10, 1000);
  const TopView view = MakeTopView(&before, Example(12, 251000));
  const TopHeader header{.scheduler = "s:7070", .away = "no answer", .away_s = 3, .unix_s = 0};
  const std::string text = TopText(header, &view);
  EXPECT_THAT(text, HasSubstr("2 of 3"));
  EXPECT_THAT(text, HasSubstr("75.0 %"));
  EXPECT_THAT(text, HasSubstr("1 Mbps"));
  EXPECT_THAT(text, HasSubstr("node 0 of train"));
  EXPECT_THAT(text, HasSubstr("AWAY since 3 s, asking again: no answer"));
  EXPECT_THAT(TopText({.scheduler = "s:7070", .away = ""}, &view), Not(HasSubstr("AWAY")));
}

TEST(TopTextTest, AClusterThatHasNeverAnsweredIsShownAsAway) {
  EXPECT_EQ(TopText({.scheduler = "s:7070", .away = "refused", .away_s = 2}, nullptr),
            "Scheduler s:7070\nAWAY since 2 s, asking again: refused\n");
}

TEST(TopJsonTest, IsOneLineWithNullForUnknownValues) {
  const TopView view = MakeTopView(nullptr, Example(10, 1000));
  const std::string text = TopJson({.scheduler = "s:7070", .away = "", .unix_s = 5}, &view);
  EXPECT_EQ(text.find('\n'), text.size() - 1);
  const auto json = nlohmann::json::parse(text);
  EXPECT_TRUE(json["away_s"].is_null());
  EXPECT_TRUE(json["servers"][0]["in_bps"].is_null());
  EXPECT_EQ(json["jobs"][0]["efficiency"], 0.75);
  EXPECT_TRUE(json["jobs"][0]["optimal_encoded_s"].is_null());
  const auto away =
      nlohmann::json::parse(TopJson({.scheduler = "", .away = "no", .away_s = 4}, nullptr));
  EXPECT_EQ(away["away_s"], 4.0);
}

TEST(FitScreenTest, CutsLinesByCharactersAndDropsLinesBelowTheScreen) {
  EXPECT_EQ(FitScreen("\u00e4\u00e4\u00e4x\nabcdef\nthird\n", 3, 2), "\u00e4\u00e4\u00e4\nabc\n");
  EXPECT_EQ(FitScreen("long line\n", 0, 0), "long line\n");
}

}  // namespace
}  // namespace addend
