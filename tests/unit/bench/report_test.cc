#include "bench/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "bench/process_cpu.h"

namespace addend {
namespace {

using ::testing::HasSubstr;

Measurement SomeLine() {
  return {.name = "1MB",
          .bytes = 1'000'000,
          .seconds = {0.004, 0.001, 0.002, 0.1},
          .cpu_s_per_GB = 0.5,
          .checksum = 0xABC};
}

TEST(ReportTest, PercentileIsTheNearestRank) {
  EXPECT_EQ(Percentile({3, 1, 2}, 0.5), 2);
  EXPECT_EQ(Percentile({4, 3, 1, 2}, 0.5), 2);
  EXPECT_EQ(Percentile({4, 3, 1, 2}, 0.99), 4);
  EXPECT_EQ(Percentile({7}, 0.0), 7);
}

TEST(ReportTest, JsonHasTheDocumentedFields) {
  const nlohmann::json rows = nlohmann::json::parse(ToJson({SomeLine()}));
  ASSERT_EQ(rows.size(), 1);
  EXPECT_EQ(rows[0]["bytes"], 1'000'000);
  EXPECT_EQ(rows[0]["iterations"], 4);
  EXPECT_DOUBLE_EQ(rows[0]["p50_s"], 0.002);
  EXPECT_DOUBLE_EQ(rows[0]["p99_s"], 0.1);
  EXPECT_DOUBLE_EQ(rows[0]["goodput_Bps"], 5e8);
  EXPECT_DOUBLE_EQ(rows[0]["cpu_s_per_GB"], 0.5);
  EXPECT_EQ(rows[0]["checksum"], "0000000000000abc");
}

TEST(ReportTest, TensorsOfATrainingAreListed) {
  Measurement line = SomeLine();
  EXPECT_FALSE(nlohmann::json::parse(ToJson({line}))[0].contains("tensor_bytes"));
  line.tensor_bytes = {8, 4};
  EXPECT_EQ(nlohmann::json::parse(ToJson({line}))[0]["tensor_bytes"], (std::vector{8, 4}));
}

TEST(ReportTest, UnknownProcessorTimeIsNull) {
  Measurement line = SomeLine();
  line.cpu_s_per_GB.reset();
  EXPECT_TRUE(nlohmann::json::parse(ToJson({line}))[0]["cpu_s_per_GB"].is_null());
  EXPECT_THAT(ToTable({line}, 2), HasSubstr("unknown"));
}

TEST(ReportTest, TableIsForPeople) {
  const std::string table = ToTable({SomeLine()}, 2);
  EXPECT_THAT(table, HasSubstr("2 ranks"));
  EXPECT_THAT(table, HasSubstr("2.00 ms"));
  EXPECT_THAT(table, HasSubstr("500.0 MB/s"));
}

TEST(ProcessCpuTest, GrowsWithWork) {
  const std::optional<double> before = ProcessCpuSeconds(getpid());
  ASSERT_TRUE(before.has_value());
  double sum = 0;
  for (int i = 0; i < 3'000'000; ++i) sum += 1.0 / (i + 1);
  EXPECT_GT(sum, 0);
  EXPECT_GT(ProcessCpuSeconds(getpid()).value_or(0), *before);
}

TEST(ProcessCpuTest, UnknownProcessHasNone) {
  EXPECT_FALSE(ProcessCpuSeconds(0x7ffffff0).has_value());
  EXPECT_FALSE(ServerOfSocket("/nonexistent/socket").has_value());
}

}  // namespace
}  // namespace addend
