#include "lib/plan/shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "lib/base/strings.h"

namespace addend {
namespace {

using testing::HasSubstr;

constexpr double kBytes = 1e9;
constexpr double kBps = 100e9;

Plan MustPlan(const PlanInput& input) {
  absl::StatusOr<Plan> plan = MakePlan(input);
  EXPECT_TRUE(plan.ok()) << Message(plan.status());
  return plan.ok() ? *plan : Plan{};
}
Plan Homogeneous(size_t n, size_t k) { return MustPlan(HomogeneousInput(n, k, kBytes, kBps)); }

double Sum(const Plan& plan) {
  return std::accumulate(plan.gpu_shares.begin(), plan.gpu_shares.end(), 0.0) +
         std::accumulate(plan.cpu_shares.begin(), plan.cpu_shares.end(), 0.0);
}

// The time of the busiest link, from the bytes that each machine carries.
double TimeOf(const PlanInput& input, const std::vector<double>& gpu,
              const std::vector<double>& cpu) {
  const double n = static_cast<double>(gpu.size());
  double time = 0;
  for (size_t i = 0; i < gpu.size(); ++i) {
    time = std::max(time, 8 * input.bytes * (1 + (n - 2) * gpu[i]) / input.gpu_bps[i]);
  }
  for (size_t j = 0; j < cpu.size(); ++j) {
    time = std::max(time, 8 * input.bytes * n * cpu[j] / input.cpu_bps[j]);
  }
  return time;
}

TEST(SharesTest, EightGpuMachinesFollowEquations1And2And6) {
  const double n = 8;
  for (int k = 0; k <= 8; ++k) {
    SCOPED_TRACE(k);
    const Plan plan = Homogeneous(8, k);
    const double denominator = n * n + k * n - 2 * k;
    for (const double y : plan.cpu_shares) EXPECT_NEAR(y, 2 * (n - 1) / denominator, 1e-9);
    for (const double x : plan.gpu_shares) EXPECT_NEAR(x, (n - k) / denominator, 1e-9);
    EXPECT_NEAR(Sum(plan), 1, 1e-12);
    const double t = 2 * n * (n - 1) * kBytes * 8 / (denominator * kBps);
    EXPECT_NEAR(*plan.t_opt_s, t, 1e-9 * t);
    EXPECT_EQ(plan.floor, k < 8 ? Floor::kAllLinks : Floor::kOneLink);
  }
}

TEST(SharesTest, WithoutCpuMachinesItIsAllReduceAndWithNAParameterServer) {
  const Plan ring = Homogeneous(8, 0);
  EXPECT_DOUBLE_EQ(*ring.t_opt_s, *ring.t_allreduce_s);
  EXPECT_DOUBLE_EQ(*ring.speedup_vs_allreduce, 1);
  EXPECT_FALSE(ring.t_ps_s.has_value());
  EXPECT_FALSE(ring.speedup_vs_ps.has_value());
  const Plan server = Homogeneous(8, 8);
  EXPECT_DOUBLE_EQ(*server.t_opt_s, *server.t_ps_s);
  EXPECT_DOUBLE_EQ(*server.speedup_vs_ps, 1);
  for (const double x : server.gpu_shares) EXPECT_EQ(x, 0) << "exactly, not a rounding error";
}

TEST(SharesTest, ThePapersExampleHasItsSpeedups) {
  const Plan plan = Homogeneous(32, 16);
  EXPECT_NEAR(*plan.speedup_vs_allreduce, 1.46875, 1e-12);
  EXPECT_NEAR(*plan.speedup_vs_ps, 1504.0 / 992.0, 1e-12);
  EXPECT_NEAR(*plan.speedup_vs_ps, 1.516129, 1e-6);
}

TEST(SharesTest, MoreCpuMachinesThanGpuMachinesIsAParameterServer) {
  const Plan plan = Homogeneous(4, 7);
  for (const double y : plan.cpu_shares) EXPECT_DOUBLE_EQ(y, 1.0 / 7);
  for (const double x : plan.gpu_shares) EXPECT_EQ(x, 0);
  EXPECT_DOUBLE_EQ(*plan.t_opt_s, kBytes * 8 / kBps);
  EXPECT_EQ(plan.floor, Floor::kOneLink);
  EXPECT_THAT(ExplainFloor(plan), HasSubstr("GPU machine 0 is the floor"));
}

TEST(SharesTest, OneGpuMachineNeedsNoNetwork) {
  for (const size_t k : {0, 1, 3}) {
    const Plan plan = Homogeneous(1, k);
    EXPECT_EQ(plan.gpu_shares, std::vector<double>{1});
    EXPECT_EQ(plan.cpu_shares, std::vector<double>(k, 0));
    EXPECT_EQ(plan.floor, Floor::kNoNetwork);
    EXPECT_FALSE(plan.t_opt_s || plan.t_allreduce_s || plan.t_ps_s);
    EXPECT_FALSE(plan.speedup_vs_allreduce || plan.speedup_vs_ps);
  }
}

TEST(SharesTest, OneGpuMachineNeedsAnotherServerOnlyForMemory) {
  PlanInput input = HomogeneousInput(1, 1, 1000, kBps);
  input.limit_bytes = {1000, std::numeric_limits<double>::infinity()};
  EXPECT_EQ(MustPlan(input).cpu_shares, std::vector<double>{0});
  input.limit_bytes[0] = 900;
  EXPECT_GT(MustPlan(input).cpu_shares[0], 0);
}

TEST(SharesTest, TwoGpuMachinesFollowTheEquationsToo) {
  for (int k = 0; k <= 2; ++k) {
    const Plan plan = Homogeneous(2, k);
    for (const double y : plan.cpu_shares) EXPECT_NEAR(y, 0.5, 1e-12);
    for (const double x : plan.gpu_shares) EXPECT_NEAR(x, (2.0 - k) / 4, 1e-12);
    EXPECT_DOUBLE_EQ(*plan.t_opt_s, kBytes * 8 / kBps);
  }
}

TEST(SharesTest, UnequalBandwidthsFollowTheClosedForm) {
  PlanInput input;
  input.bytes = kBytes;
  input.gpu_bps = {100e9, 75e9, 80e9, 100e9};
  input.cpu_bps = {25e9, 40e9};
  const double n = 4, gpu = 355e9, cpu = 65e9, bits = 8 * kBytes;
  const double t = std::max(bits / 75e9, bits * (1 + n / (n - 2)) / (gpu / (n - 2) + cpu / n));
  const Plan plan = MustPlan(input);
  ASSERT_GT(t, bits / 75e9) << "the second term wins";
  EXPECT_NEAR(*plan.t_opt_s, t, 1e-12);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(plan.gpu_shares[i], (t * input.gpu_bps[i] / bits - 1) / (n - 2), 1e-12);
  }
  for (size_t j = 0; j < 2; ++j) {
    EXPECT_NEAR(plan.cpu_shares[j], t * input.cpu_bps[j] / (n * bits), 1e-12);
  }
  EXPECT_NEAR(Sum(plan), 1, 1e-12);
}

TEST(SharesTest, ASlowLinkIsNamedAsTheFloor) {
  PlanInput input = HomogeneousInput(4, 2, kBytes, 100e9);
  input.gpu_bps[2] = 10e9;
  const Plan plan = MustPlan(input);
  EXPECT_EQ(plan.floor, Floor::kOneLink);
  EXPECT_EQ(plan.floor_machine, 2u);
  EXPECT_DOUBLE_EQ(*plan.t_opt_s, 8 * kBytes / 10e9);
  EXPECT_EQ(plan.gpu_shares[2], 0) << "the slowest link carries nothing but its own bytes";
  EXPECT_LE(TimeOf(input, plan.gpu_shares, plan.cpu_shares), *plan.t_opt_s * (1 + 1e-12));
}

TEST(SharesTest, TwoUnequalGpuMachinesTakeTheSlowersTime) {
  PlanInput input;
  input.bytes = kBytes;
  input.gpu_bps = {10e9, 40e9};
  input.cpu_bps = {10e9};
  const Plan plan = MustPlan(input);
  EXPECT_DOUBLE_EQ(*plan.t_opt_s, 8 * kBytes / 10e9);
  EXPECT_NEAR(Sum(plan), 1, 1e-12);
  EXPECT_LE(TimeOf(input, plan.gpu_shares, plan.cpu_shares), *plan.t_opt_s * (1 + 1e-12));
}

// No assignment of shares is faster than the plan: the largest sum of shares that fits into a
// little less time is below 1, and the best of many random assignments is slower.
TEST(SharesTest, NoOtherSharesAreFaster) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> bandwidth(1e9, 100e9);
  std::exponential_distribution<double> part(1);
  for (int round = 0; round < 300; ++round) {
    PlanInput input;
    input.bytes = 1e8;
    const size_t n = 2 + random() % 5, k = random() % 5;
    for (size_t i = 0; i < n; ++i) input.gpu_bps.push_back(bandwidth(random));
    for (size_t j = 0; j < k; ++j) input.cpu_bps.push_back(bandwidth(random));
    for (size_t i = 0; i < n; ++i)
      input.gpu_sums.push_back(k == 0 ? i == 0 || random() % 2 : random() % 3 > 0);
    const Plan plan = MustPlan(input);
    ASSERT_NEAR(Sum(plan), 1, 1e-9);
    ASSERT_NEAR(TimeOf(input, plan.gpu_shares, plan.cpu_shares), *plan.t_opt_s,
                1e-9 * *plan.t_opt_s);
    for (size_t i = 0; i < n; ++i) {
      ASSERT_GE(plan.gpu_shares[i], 0);
      ASSERT_TRUE(input.gpu_sums[i] || plan.gpu_shares[i] == 0);
    }
    for (int attempt = 0; attempt < 200; ++attempt) {
      // Near the plan or anywhere, scaled to sum 1.
      std::vector<double> shares = plan.gpu_shares;
      shares.insert(shares.end(), plan.cpu_shares.begin(), plan.cpu_shares.end());
      double sum = 0;
      for (size_t i = 0; i < shares.size(); ++i) {
        if (i < n && !input.gpu_sums[i]) continue;
        shares[i] =
            attempt % 2 ? part(random) : shares[i] * (1 + 0.1 * part(random)) + 0.01 * part(random);
        sum += shares[i];
      }
      for (double& s : shares) s /= sum;
      const double t =
          TimeOf(input, {shares.begin(), shares.begin() + n}, {shares.begin() + n, shares.end()});
      ASSERT_GE(t, *plan.t_opt_s * (1 - 1e-9));
    }
  }
}

TEST(SharesTest, WithoutColocatedServersTheCpuMachinesTakeAll) {
  PlanInput input = HomogeneousInput(4, 2, kBytes, kBps);
  input.gpu_sums = {false, false, false, false};
  const Plan plan = MustPlan(input);
  EXPECT_EQ(plan.cpu_shares, (std::vector<double>{0.5, 0.5}));
  EXPECT_DOUBLE_EQ(*plan.t_opt_s, *plan.t_ps_s);
  EXPECT_EQ(plan.floor, Floor::kAllLinks);
}

TEST(SharesTest, OneGpuMachineWithoutAServerUsesTheCpuMachines) {
  PlanInput input = HomogeneousInput(1, 2, kBytes, kBps);
  input.gpu_sums = {false};
  const Plan plan = MustPlan(input);
  EXPECT_EQ(plan.gpu_shares, std::vector<double>{0});
  EXPECT_EQ(plan.cpu_shares, (std::vector<double>{0.5, 0.5}));
}

TEST(SharesTest, UnknownBandwidthsCountAsEqual) {
  const Plan plan = MustPlan(HomogeneousInput(8, 4, kBytes, 0));
  EXPECT_NEAR(plan.cpu_shares[0], 14.0 / 88, 1e-12);
  EXPECT_FALSE(plan.t_opt_s.has_value());
  EXPECT_NEAR(*plan.speedup_vs_allreduce, 88.0 / 64, 1e-12);
}

TEST(SharesTest, OneUnknownBandwidthCountsAsTheSlowestKnown) {
  PlanInput input = HomogeneousInput(3, 1, kBytes, 40e9);
  input.gpu_bps[0] = 10e9;
  PlanInput unknown = input;
  unknown.gpu_bps[0] = 10e9;
  unknown.gpu_bps[1] = 0;
  input.gpu_bps[1] = 10e9;
  EXPECT_EQ(MustPlan(unknown).gpu_shares, MustPlan(input).gpu_shares);
}

TEST(SharesTest, ALimitedServersRestGoesToTheOthers) {
  PlanInput input = HomogeneousInput(4, 2, kBytes, kBps);
  const double unlimited = MustPlan(input).cpu_shares[0];
  input.limit_bytes.assign(6, std::numeric_limits<double>::infinity());
  input.limit_bytes[4] = 0.1 * kBytes;
  ASSERT_GT(unlimited, 0.1);
  const Plan plan = MustPlan(input);
  EXPECT_NEAR(plan.cpu_shares[0], 0.1, 1e-12);
  EXPECT_GT(plan.cpu_shares[1], unlimited);
  EXPECT_NEAR(Sum(plan), 1, 1e-12);
  EXPECT_NEAR(TimeOf(input, plan.gpu_shares, plan.cpu_shares), *plan.t_opt_s, 1e-12);
}

TEST(SharesTest, AServerWithALimitOfZeroBytesGetsNothing) {
  PlanInput input = HomogeneousInput(4, 2, kBytes, kBps);
  input.limit_bytes.assign(6, std::numeric_limits<double>::infinity());
  input.limit_bytes[4] = 0;
  const Plan plan = MustPlan(input);
  EXPECT_EQ(plan.cpu_shares[0], 0);
  EXPECT_NEAR(plan.cpu_shares[1], Homogeneous(4, 1).cpu_shares[0], 1e-12);
  input.limit_bytes[4] = -1;
  EXPECT_EQ(MakePlan(input).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(SharesTest, TooLittleMemoryIsAnErrorWithNumbers) {
  PlanInput input = HomogeneousInput(2, 1, 1000, kBps);
  input.limit_bytes = {100, 200, 300};
  const absl::Status status = MakePlan(input).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Message(status), HasSubstr("room for 1000 bytes"));
  EXPECT_THAT(Message(status), HasSubstr("only 600"));
}

TEST(SharesTest, NoServerAtAllIsRefused) {
  PlanInput input = HomogeneousInput(2, 0, kBytes, kBps);
  input.gpu_sums = {false, false};
  const absl::Status status = MakePlan(input).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(status), HasSubstr("No machine runs a summation server"));
}

TEST(SharesTest, MalformedInputIsRefused) {
  EXPECT_EQ(MakePlan({}).status().code(), absl::StatusCode::kInvalidArgument);
  PlanInput input = HomogeneousInput(2, 1, kBytes, kBps);
  input.gpu_sums = {true};
  EXPECT_EQ(MakePlan(input).status().code(), absl::StatusCode::kInvalidArgument);
  for (const double bad : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(MakePlan(HomogeneousInput(2, 1, kBytes, bad)).status().code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(MakePlan(HomogeneousInput(2, 1, bad, kBps)).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(SharesTest, ThousandsOfMachines) {
  const Plan plan = Homogeneous(2048, 1024);
  EXPECT_NEAR(Sum(plan), 1, 1e-9);
  EXPECT_NEAR(plan.cpu_shares[1023], 2 * 2047.0 / (2048.0 * 2048 + 1024 * 2046.0), 1e-15);
}

}  // namespace
}  // namespace addend
