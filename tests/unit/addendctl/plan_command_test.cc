#include "tools/addendctl/plan_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "lib/base/failure.h"
#include "lib/base/strings.h"

namespace addend {
namespace {

using ::testing::HasSubstr;

nlohmann::json Ask(PlanQuestion question) {
  question.json = true;
  const auto answer = AnswerPlan(question);
  EXPECT_TRUE(answer.ok()) << answer.status();
  return answer.ok() ? nlohmann::json::parse(*answer) : nlohmann::json();
}

std::string Refusal(const PlanQuestion& question) {
  const auto answer = AnswerPlan(question);
  EXPECT_EQ(KindOf(answer.status()), FailureKind::kInvalid);
  return Message(answer.status());
}

PlanQuestion Homogeneous(uint32_t n, uint32_t k) {
  return {.gpu_nodes = n,
          .cpu_nodes = k,
          .bytes = 1'000'000'000,
          .bandwidth_bps = 100e9,
          .bandwidths = "",
          .json = false};
}

TEST(PlanCommandTest, PrintsThePapersSpeedups) {
  const auto json = Ask(Homogeneous(32, 16));
  EXPECT_DOUBLE_EQ(json["speedup_vs_allreduce"], 1.46875);
  EXPECT_NEAR(json["speedup_vs_ps"], 1.516129, 1e-6);
}

TEST(PlanCommandTest, AgreesWithTheEquations) {
  const double n = 8;
  for (uint32_t k = 0; k <= 8; ++k) {
    const auto json = Ask(Homogeneous(8, k));
    const double base = n * n + k * n - 2 * k;
    EXPECT_NEAR(json["share_cpu"], 2 * (n - 1) / base, 1e-9);
    EXPECT_NEAR(json["share_gpu"], (n - k) / base, 1e-9);
    EXPECT_NEAR(json["t_opt_s"], 2 * n * (n - 1) / base * 0.08, 1e-9);
    EXPECT_EQ(json["t_ps_s"].is_null(), k == 0);
    EXPECT_EQ(json["speedup_vs_ps"].is_null(), k == 0);
  }
}

PlanQuestion OfModel(const std::string& model, uint32_t n, uint32_t k) {
  PlanQuestion question = Homogeneous(n, k);
  question.bytes = 0;
  question.model = model;
  question.partition_bytes = 128 << 10;
  return question;
}

TEST(PlanCommandTest, AModelIsSimulatedWithItsTensors) {
  const auto simulation = Ask(OfModel("bert-large", 8, 2))["simulation"];
  EXPECT_EQ(simulation["tensors"], 391);
  EXPECT_EQ(simulation["bytes"], 335'141'888 * 4);
  const auto& ours = simulation["balanced"];
  EXPECT_GE(ours["t_s"], ours["t_opt_s"]);
  EXPECT_LT(ours["t_s"], 1.01 * ours["t_opt_s"].get<double>());
  EXPECT_GT(simulation["hash"]["t_s"], ours["t_s"]);
  ASSERT_EQ(simulation["further"].size(), 3u) << "3, 4 and 6 CPU machines";
  EXPECT_EQ(simulation["further"][2]["cpu_nodes"], 6);
  EXPECT_LT(simulation["further"][2]["t_s"], simulation["further"][0]["t_s"]);
  const auto one = Ask(Homogeneous(8, 2))["simulation"];
  EXPECT_TRUE(one["model"].is_null());
  EXPECT_EQ(one["tensors"], 1);
}

TEST(PlanCommandTest, AModelReplacesTheBytes) {
  PlanQuestion question = OfModel("bert-large", 8, 2);
  question.bytes = 1;
  EXPECT_THAT(Refusal(question), HasSubstr("either --bytes=SIZE"));
  EXPECT_THAT(Refusal(OfModel("alexnet", 8, 2)), HasSubstr("the known ones are resnet50"));
  EXPECT_THAT(AnswerPlan(OfModel("gpt2", 8, 2)).value(), HasSubstr("With the 148 tensors of gpt2"));
}

TEST(PlanCommandTest, OneNodeHasSharesAndNoTimes) {
  const auto json = Ask(Homogeneous(1, 0));
  EXPECT_EQ(json["share_gpu"], 1.0);
  for (const char* name :
       {"t_opt_s", "t_allreduce_s", "t_ps_s", "speedup_vs_allreduce", "speedup_vs_ps"}) {
    EXPECT_TRUE(json[name].is_null()) << name;
  }
}

TEST(PlanCommandTest, BandwidthsGiveOneShareEach) {
  PlanQuestion question = Homogeneous(2, 1);
  question.bandwidths = "10Gbps,20Gbps,5Gbps";
  const auto json = Ask(question);
  ASSERT_EQ(json["shares"].size(), 3u);
  EXPECT_FALSE(json.contains("share_cpu"));
  EXPECT_NEAR(json["t_opt_s"], 0.8, 1e-9);
}

TEST(PlanCommandTest, RatiosAddATimeAndChangeTheShares) {
  PlanQuestion question = Homogeneous(8, 4);
  const auto raw = Ask(question);
  EXPECT_EQ(raw["contribution_ratio"], 1.0);
  EXPECT_EQ(raw["result_ratio"], 1.0);
  EXPECT_EQ(raw["t_opt_encoded_s"], raw["t_opt_s"]);
  question.ratios = {0.5, 1};
  const auto json = Ask(question);
  EXPECT_EQ(json["contribution_ratio"], 0.5);
  EXPECT_NEAR(json["t_opt_encoded_s"], 1.5 * 56 / 74 * 0.08, 1e-9);
  EXPECT_NEAR(json["share_gpu"], 4.0 / 74, 1e-9);
  EXPECT_NEAR(json["share_cpu"], 1.5 * 7 / 74, 1e-9);
  for (const char* name :
       {"t_opt_s", "t_allreduce_s", "t_ps_s", "speedup_vs_allreduce", "speedup_vs_ps"}) {
    EXPECT_EQ(json[name], raw[name]) << name;
  }
  const auto& simulated = json["simulation"]["balanced"];
  EXPECT_EQ(simulated["t_opt_encoded_s"], json["t_opt_encoded_s"]);
  EXPECT_LT(simulated["t_s"], json["t_opt_s"]);
  EXPECT_THAT(AnswerPlan(question).value(), HasSubstr("Addend, optimal, encoded"));
}

TEST(PlanCommandTest, GroupsCompareTwoLevelsWithTheFlatPlan) {
  PlanQuestion question = Homogeneous(16, 0);
  EXPECT_FALSE(Ask(question).contains("two_levels"));
  question.groups = 4;
  const double one_m = 0.08;  // seconds
  const auto even = Ask(question)["two_levels"];
  EXPECT_NEAR(even["t_opt_s"], 2 * 15.0 / 16 * one_m, 1e-9);
  EXPECT_NEAR(even["flat"]["t_opt_s"], 2 * 15.0 / 16 * one_m, 1e-9);
  EXPECT_EQ(even["links"], 6);
  EXPECT_EQ(even["flat"]["links"], 15);
  // A quarter of the group's own bandwidth between groups.
  question.uplink_bps = question.bandwidth_bps;
  const auto narrow = Ask(question)["two_levels"];
  EXPECT_NEAR(narrow["t_opt_s"], 2 * 15.0 / 16 * one_m, 1e-9);
  EXPECT_NEAR(narrow["flat"]["t_opt_s"], 6 * one_m, 1e-9);
  EXPECT_GT(narrow["t_s"], narrow["t_opt_s"]);
  EXPECT_LT(narrow["t_s"], 1.05 * narrow["t_opt_s"].get<double>());
  EXPECT_THAT(AnswerPlan(question).value(), HasSubstr("In 4 groups of 4 GPU and 0 CPU machines"));
}

TEST(PlanCommandTest, GroupsNeedEqualMachines) {
  PlanQuestion question = Homogeneous(16, 2);
  question.groups = 4;
  EXPECT_EQ(Refusal(question),
            "--groups: 4 equal groups cannot be made of 16 GPU machines and 2 CPU machines: the "
            "number of groups has to divide both");
  question = Homogeneous(16, 0);
  question.groups = 1;
  EXPECT_THAT(Refusal(question), HasSubstr("--groups compares plans for at least 2 groups"));
  question.groups = 4;
  question.bandwidth_bps = 0;
  EXPECT_THAT(Refusal(question), HasSubstr("--groups needs equal machines of known bandwidth"));
  question = Homogeneous(1'000'000, 0);
  question.groups = 500'000;
  EXPECT_EQ(Refusal(question),
            "--groups: plan simulates at most 200 partitions for 500000 groups, not 61035: give "
            "fewer groups, or larger --partition-bytes");
  question = Homogeneous(16, 0);
  question.uplink_bps = 1e9;
  EXPECT_THAT(Refusal(question), HasSubstr("--uplink is the bandwidth between them"));
}

TEST(PlanCommandTest, WithoutCpuMachinesTheShareOfOneIsShown) {
  PlanQuestion question = Homogeneous(8, 0);
  question.ratios = {0.5, 1};
  EXPECT_NEAR(Ask(question)["share_cpu"], 1.5 * 7 / 64, 1e-9);
  question.ratios = {0.1, 1};
  EXPECT_EQ(Ask(question)["share_cpu"], 0.0) << "CPU machines do not help";
}

TEST(PlanCommandTest, RatiosOutsideTheirRangeAreRefused) {
  PlanQuestion question = Homogeneous(8, 4);
  question.ratios.contributions = 0;
  EXPECT_EQ(
      Refusal(question),
      "--contribution-ratio is the number of bytes on the wire for each raw byte, above 0 and "
      "at most 1, not 0");
  question.ratios = {1, 1.5};
  EXPECT_THAT(Refusal(question), HasSubstr("--result-ratio is the number of bytes"));
  question.ratios = {1, std::nan("")};
  EXPECT_THAT(Refusal(question), HasSubstr("at most 1, not nan"));
}

TEST(PlanCommandTest, SaysWhatIsMissing) {
  EXPECT_THAT(Refusal({}), HasSubstr("--gpu-nodes=N"));
  EXPECT_THAT(Refusal({.gpu_nodes = 2}), HasSubstr("--bytes=SIZE"));
  PlanQuestion question = Homogeneous(2, 1);
  question.bandwidths = "10Gbps,20Gbps";
  EXPECT_THAT(Refusal(question), HasSubstr("--bandwidths has 2 values"));
  question.bandwidths = "10Gbps,20Gbps,fast";
  EXPECT_THAT(Refusal(question), HasSubstr("value 3: 'fast' is not a bandwidth"));
}

TEST(PlanCommandTest, PeopleGetATable) {
  const auto text = AnswerPlan(Homogeneous(8, 4));
  ASSERT_TRUE(text.ok());
  EXPECT_THAT(*text, HasSubstr("8 GPU machines, 4 CPU machines, 1 GB"));
  EXPECT_THAT(*text, HasSubstr("Parameter server"));
}

}  // namespace
}  // namespace addend
