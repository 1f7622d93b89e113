#include "tools/addendctl/plan_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
