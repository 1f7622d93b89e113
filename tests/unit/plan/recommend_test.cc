#include "lib/plan/recommend.h"

#include <gtest/gtest.h>

#include "lib/plan/shares.h"

namespace addend {
namespace {

constexpr double kGbps = 1e9;

size_t Recommend(std::vector<double> gpu_bps, std::vector<double> cpu_bps = {},
                 std::vector<bool> gpu_sums = {}) {
  return RecommendedServers({std::move(gpu_bps), std::move(gpu_sums), std::move(cpu_bps)});
}

double TimeOf(size_t n, size_t k) { return *MakePlan(HomogeneousInput(n, k, 1, kGbps))->t_opt_s; }

TEST(RecommendTest, TwoMachinesNeedNoCpuServers) {
  EXPECT_EQ(Recommend({}), 0u);
  EXPECT_EQ(Recommend({kGbps}), 0u);
  EXPECT_EQ(Recommend({kGbps, kGbps}), 0u);
  EXPECT_EQ(Recommend({kGbps, kGbps}, {100 * kGbps}), 0u);
}

TEST(RecommendTest, IsTheSmallestNumberThatIsWithinOnePercentOfTheBest) {
  for (const size_t n : {3, 4, 8, 16, 33}) {
    const size_t k = Recommend(std::vector<double>(n, kGbps));
    EXPECT_LE(TimeOf(n, k), 1.01 * TimeOf(n, n)) << n;
    ASSERT_GT(k, 0u) << n;
    EXPECT_GT(TimeOf(n, k - 1), 1.01 * TimeOf(n, n)) << n;
  }
}

TEST(RecommendTest, WithoutAnyKnownBandwidthAllCountAsEqual) {
  EXPECT_EQ(Recommend(std::vector<double>(8, 0)), Recommend(std::vector<double>(8, kGbps)));
  EXPECT_EQ(Recommend(std::vector<double>(8, 0), {0, 0}), Recommend(std::vector<double>(8, kGbps)));
}

TEST(RecommendTest, FastServersReplaceSeveral) {
  const std::vector<double> gpu(8, 10 * kGbps);
  const size_t alike = Recommend(gpu);
  EXPECT_EQ(Recommend(gpu, {100 * kGbps}), 1u);
  EXPECT_LT(Recommend(gpu, {20 * kGbps, 20 * kGbps}), alike);
  // The fastest come first, whatever their order.
  EXPECT_EQ(Recommend(gpu, {kGbps, kGbps, 100 * kGbps}), 1u);
}

TEST(RecommendTest, FurtherServersCountAsTheMeanOfTheAvailableServers) {
  const std::vector<double> gpu(8, 10 * kGbps);
  EXPECT_EQ(Recommend(gpu, {5 * kGbps}), Recommend(gpu, std::vector<double>(8, 5 * kGbps)));
  EXPECT_EQ(Recommend(gpu), Recommend(gpu, std::vector<double>(8, 10 * kGbps)));
  // A mean of the GPU machines, or half of the server's bandwidth, would give more servers.
  const size_t fast = Recommend(gpu, std::vector<double>(8, 20 * kGbps));
  ASSERT_EQ(fast, 4u);
  EXPECT_EQ(Recommend(gpu, {20 * kGbps}), fast);
  EXPECT_EQ(Recommend(gpu, {20 * kGbps, 0}), fast) << "an unknown bandwidth is not in the mean";
}

TEST(RecommendTest, ASlowGpuMachineNeedsFewerServers) {
  std::vector<double> gpu(8, 10 * kGbps);
  const size_t alike = Recommend(gpu);
  gpu[0] = kGbps;  // its own gradients take ten times as long, with any servers
  EXPECT_LT(Recommend(gpu), alike);
}

TEST(RecommendTest, WithoutColocatedServersAtLeastOneCpuServerIsNeeded) {
  EXPECT_EQ(Recommend({kGbps}, {}, {false}), 1u);
  EXPECT_EQ(Recommend({kGbps, kGbps}, {}, {false, false}), 2u);
  EXPECT_EQ(Recommend({kGbps, kGbps}, {2 * kGbps}, {false, false}), 1u);
}

// Results are ten times as large as contributions: machines that sum all alike receive least.
TEST(RecommendTest, VeryDifferentRatiosNeedNoCpuServers) {
  RecommendInput input{.gpu_bps = std::vector<double>(8, kGbps), .ratios = {0.5, 1}};
  EXPECT_EQ(RecommendedServers(input), 8u);
  input.ratios = {0.1, 1};
  EXPECT_EQ(RecommendedServers(input), 0u);
}

TEST(RecommendTest, ThousandsOfMachinesAreQuick) {
  EXPECT_GT(Recommend(std::vector<double>(10'000, kGbps)), 9'000u);
}

}  // namespace
}  // namespace addend
