#include "tools/addendctl/bottleneck.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "tools/addendctl/trace_command.h"
#include "tools/addendctl/trace_json.h"

namespace addend {
namespace {

using testing::HasSubstr;

constexpr uint64_t kMs = 1'000'000;

// A job of three nodes and two CPU servers, 10 and 11, which have a partition each. Every node
// calls at 0, is ready 1 ms later, sends for 10 ms, and has the result 10 ms after the last
// contribution. A test slows a round down by changing `Times` before it adds the round.
class Scene {
 public:
  struct Times {
    std::map<uint32_t, uint64_t> late = {}, staging = {}, node_link = {}, server_link = {},
                                 adding = {};  // in ms
  };

  Scene() {
    trace_.job = "bert";
    for (uint32_t node = 0; node < 3; ++node) {
      trace_.nodes.push_back({.rank = node, .host = "gpu" + std::to_string(node)});
    }
    for (const uint32_t server : {10u, 11u}) {
      trace_.servers.push_back({.id = server, .host = "cpu" + std::to_string(server)});
    }
    trace_.tensors[7] = "layer";
  }

  void AddRound(Times slow) {
    std::map<uint32_t, uint64_t> sealed;  // by server
    std::map<std::pair<uint32_t, uint32_t>, v1::PartitionLife> lives;
    for (ServerTrace& server : trace_.servers) {
      uint64_t last = 0;
      for (NodeTrace& node : trace_.nodes) {
        v1::PartitionLife life;
        life.set_tensor_id(7);
        life.set_partition(server.id - 10);
        life.set_round(round_);
        life.set_server_id(server.id);
        life.set_bytes(1000);
        life.set_first_call(now_ + slow.late[node.rank] * kMs);
        life.set_last_call(life.first_call());
        life.set_last_push(life.last_call() + slow.staging[node.rank] * kMs);
        life.set_ready(life.last_push() + kMs);
        life.set_first_out(life.ready());
        life.set_last_out(life.ready() + kMs);
        const uint64_t arrived =
            life.first_out() + (10 + slow.node_link[node.rank] + slow.server_link[server.id]) * kMs;
        v1::SumEvent received;
        received.set_kind(v1::SumEvent::RECEIVED);
        received.set_tensor_id(7);
        received.set_partition(life.partition());
        received.set_round(round_);
        received.set_node(node.rank);
        received.set_begin(life.first_out());
        received.set_end(arrived);
        server.events.push_back(received);
        last = std::max(last, arrived);
        lives[{server.id, node.rank}] = life;
      }
      v1::SumEvent summed;
      summed.set_kind(v1::SumEvent::SUMMED);
      summed.set_tensor_id(7);
      summed.set_partition(server.id - 10);
      summed.set_round(round_);
      summed.set_begin(last);
      summed.set_end(last + (1 + slow.adding[server.id]) * kMs);
      summed.set_busy_ns(static_cast<uint32_t>((1 + slow.adding[server.id]) * kMs));
      server.events.push_back(summed);
      sealed[server.id] = summed.end();
    }
    uint64_t delivered = 0;
    for (auto& [key, life] : lives) {
      life.set_first_in(sealed[key.first]);
      life.set_last_in(life.first_in() + (9 + slow.server_link[key.first]) * kMs);
      delivered = std::max<uint64_t>(delivered, life.last_in());
    }
    for (auto& [key, life] : lives) {
      life.set_delivered(delivered);
      trace_.nodes[key.second].lives.push_back(life);
    }
    ++round_;
    now_ = delivered + 5 * kMs;
  }

  JobTrace& trace() { return trace_; }

 private:
  JobTrace trace_;
  uint64_t round_ = 1;
  uint64_t now_ = 1000 * kMs;
};

Bottleneck Of(const Scene::Times& slow) {
  Scene scene;
  for (int i = 0; i < 3; ++i) scene.AddRound(slow);
  return FindBottleneck(scene.trace());
}

TEST(BottleneckTest, NoBottleneckIsNamedWhenAllTakeEquallyLong) {
  const Bottleneck b = Of({});
  EXPECT_FALSE(b.found());
  EXPECT_EQ(b.steps, 3u);
  EXPECT_NEAR(b.step_s, 0.021, 1e-6);
  EXPECT_NEAR(b.bytes, 2000, 1e-6);
  EXPECT_THAT(b.sentence, HasSubstr("no rank, node, server or link stands out"));
}

TEST(BottleneckTest, NamesTheRankThatCallsLate) {
  const Bottleneck b = Of({.late = {{2, 50}, {1, 10}}});
  ASSERT_TRUE(b.found());
  EXPECT_EQ(b.suspects.front().cause, Cause::kCompute);
  EXPECT_EQ(b.suspects.front().number, 2u);
  EXPECT_NEAR(b.suspects.front().own_s, 0.040, 1e-6) << "by what it is later than all others";
  EXPECT_THAT(b.sentence, HasSubstr("all wait 40.0 ms for rank 2 (node 2, on gpu2)"));
}

TEST(BottleneckTest, NamesTheNodeThatCopiesSlowly) {
  const Bottleneck b = Of({.staging = {{1, 30}}});
  ASSERT_TRUE(b.found());
  EXPECT_EQ(b.suspects.front().cause, Cause::kIntraNode);
  EXPECT_EQ(b.suspects.front().number, 1u);
  EXPECT_NEAR(b.suspects.front().own_s, 0.031, 1e-6);
  EXPECT_NEAR(b.suspects.front().others_s, 0.001, 1e-6);
}

TEST(BottleneckTest, NamesTheCopiesOfANodeThatAlsoCallsLateForThem) {
  EXPECT_EQ(Of({.late = {{1, 32}}, .staging = {{1, 30}}}).suspects.front().cause,
            Cause::kIntraNode);
  EXPECT_EQ(Of({.late = {{1, 60}}, .staging = {{1, 30}}}).suspects.front().cause, Cause::kCompute);
  EXPECT_EQ(Of({.late = {{2, 32}}, .staging = {{1, 30}}}).suspects.front().cause, Cause::kCompute);
}

TEST(BottleneckTest, NamesTheNodeWhoseLinkIsSlow) {
  const Bottleneck b = Of({.node_link = {{0, 40}}});
  ASSERT_TRUE(b.found());
  EXPECT_EQ(b.suspects.front().cause, Cause::kNodeLink);
  EXPECT_EQ(b.suspects.front().place, "the link of node 0 (on gpu0)");
}

TEST(BottleneckTest, NamesTheServerWhoseLinkIsSlow) {
  const Bottleneck b = Of({.server_link = {{11, 40}}});
  ASSERT_TRUE(b.found());
  EXPECT_EQ(b.suspects.front().cause, Cause::kServerLink);
  EXPECT_EQ(b.suspects.front().number, 11u);
  EXPECT_THAT(b.sentence, HasSubstr("the link of summation server 11 (on cpu11)"));
}

TEST(BottleneckTest, NamesTheServerThatAddsSlowly) {
  const Bottleneck b = Of({.adding = {{10, 60}}});
  ASSERT_TRUE(b.found());
  EXPECT_EQ(b.suspects.front().cause, Cause::kServerSum);
  EXPECT_EQ(b.suspects.front().number, 10u);
}

TEST(BottleneckTest, ARoundThatOneNodeLacksDoesNotCount) {
  Scene scene;
  scene.AddRound({});
  scene.AddRound({.late = {{0, 500}}});
  std::erase_if(scene.trace().nodes[1].lives, [](const auto& life) { return life.round() == 2; });
  const Bottleneck b = FindBottleneck(scene.trace());
  EXPECT_EQ(b.steps, 1u);
  EXPECT_FALSE(b.found());
}

TEST(BottleneckTest, WithoutRoundsNoBottleneckIsNamed) {
  const Bottleneck b = FindBottleneck(JobTrace());
  EXPECT_FALSE(b.found());
  EXPECT_EQ(b.sentence, "no round was recorded on all nodes");
}

TEST(ClockOffsetTest, TheQuickestAnswerCounts) {
  // Theirs is 1000 ahead; the slow answer was delayed on its way back.
  const ClockOffset offset = EstimateOffset({{0, 400, 1010}, {500, 520, 1510}});
  EXPECT_EQ(offset.ns, 1000);
  EXPECT_EQ(offset.error_ns, 10);
  EXPECT_EQ(EstimateOffset({}).ns, 0);
}

TEST(TraceEventsTest, OverlappingSpansGetRowsOfTheirOwnAndArrowsHaveBothEnds) {
  Scene scene;
  scene.AddRound({});
  scene.trace().servers[1].events.clear();  // its arrows would point nowhere
  const auto file = nlohmann::json::parse(TraceEvents(scene.trace()));
  std::map<std::pair<int, int>, double> ends;
  std::map<std::string, std::string> flows;
  for (const auto& event : file["traceEvents"]) {
    if (event["ph"] == "X") {
      double& end = ends[{event["pid"], event["tid"]}];
      EXPECT_GE(event["ts"].get<double>(), end - 1e-6);
      end = event["ts"].get<double>() + event["dur"].get<double>();
    } else if (event["ph"] != "M") {
      flows[event["id"]] += event["ph"].get<std::string>();
    }
  }
  EXPECT_FALSE(flows.empty());
  for (const auto& [id, phases] : flows) {
    EXPECT_TRUE(phases == "sf" || phases == "fs") << id << ": " << phases;
  }
}

TEST(TraceSummaryTest, NamesTheTimesAndTheMembersThatDidNotAnswer) {
  Scene scene;
  scene.AddRound({.late = {{2, 50}}});
  scene.trace().silent = {"summation server 12 (cpu12): deadline exceeded"};
  const Bottleneck b = FindBottleneck(scene.trace());
  const std::string text = SummaryText(scene.trace(), b);
  EXPECT_THAT(text,
              HasSubstr("job 'bert': steps take 71.0 ms, of which all wait 50.0 ms for rank 2"));
  EXPECT_THAT(text, HasSubstr("Did not answer: summation server 12 (cpu12): deadline exceeded."));
  const auto json = nlohmann::json::parse(SummaryJson(scene.trace(), b));
  EXPECT_EQ(json["bottleneck"]["cause"], "compute");
  EXPECT_EQ(json["bottleneck"]["number"], 2);
  EXPECT_TRUE(json["t_opt_s"].is_null());
  EXPECT_EQ(json["suspects"].size(), 4u);
}

}  // namespace
}  // namespace addend
