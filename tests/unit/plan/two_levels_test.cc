#include "lib/plan/two_levels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "lib/plan/models.h"
#include "lib/plan/two_level_round.h"

namespace addend {
namespace {

constexpr double kBytes = 1e9;
constexpr double kBps = 8e9;  // M takes a second

TwoLevelInput Equal(size_t n, size_t k, uint32_t groups, double uplink_bps = 0) {
  return EqualGroups(HomogeneousInput(n, k, kBytes, kBps), groups, uplink_bps).value();
}

// The time of the busiest link, by the loads of two_levels.h.
double Time(const TwoLevelInput& input, const TwoLevelPlan& plan) {
  const PlanInput& machines = input.machines;
  const size_t n = machines.gpu_bps.size();
  const auto groups = static_cast<double>(plan.owned.size());
  std::vector<double> members(plan.owned.size(), 0);
  for (size_t i = 0; i < n; ++i) ++members[input.groups[i]];
  double time = 0;
  for (size_t i = 0; i < input.groups.size(); ++i) {
    const uint32_t g = input.groups[i];
    const double exchanged = 1 + (groups - 2) * plan.owned[g];
    const double carried = i < n ? 1 + (members[g] - 2 + exchanged) * plan.shares[i]
                                 : (members[g] + exchanged) * plan.shares[i];
    time = std::max(time, carried * machines.bytes * 8 /
                              (i < n ? machines.gpu_bps[i] : machines.cpu_bps[i - n]));
  }
  for (size_t g = 0; g < input.uplink_bps.size(); ++g) {
    const double carried = 1 + (groups - 2) * plan.owned[g];
    time = std::max(time, carried * machines.bytes * 8 / input.uplink_bps[g]);
  }
  return time;
}

TwoLevelInput Random(std::mt19937_64* random) {
  std::uniform_real_distribution<double> bandwidth(kBps, 10 * kBps);
  std::uniform_int_distribution<uint32_t> few(1, 5);
  TwoLevelInput input;
  const uint32_t groups = few(*random) + 1;
  std::vector<uint32_t> cpu_groups;
  for (uint32_t g = 0; g < groups; ++g) {
    for (uint32_t m = few(*random); m > 0; --m) {
      input.groups.push_back(g);
      input.machines.gpu_bps.push_back(bandwidth(*random));
    }
    for (uint32_t m = few(*random) / 2; m > 0; --m) {
      cpu_groups.push_back(g);
      input.machines.cpu_bps.push_back(bandwidth(*random));
    }
    input.uplink_bps.push_back(few(*random) == 1 ? std::numeric_limits<double>::infinity()
                                                 : bandwidth(*random));
  }
  input.groups.insert(input.groups.end(), cpu_groups.begin(), cpu_groups.end());
  input.machines.bytes = kBytes;
  return input;
}

TEST(TwoLevelsTest, EqualGroupsWithoutCpuMachinesTakeTheBytesOfAFlatPlan) {
  for (const auto& [n, groups] :
       {std::pair<size_t, uint32_t>{4, 2}, {16, 4}, {64, 8}, {4096, 64}}) {
    const TwoLevelPlan plan = MakeTwoLevelPlan(Equal(n, 0, groups)).value();
    const auto machines = static_cast<double>(n);
    EXPECT_NEAR(plan.t_opt_s, 2 * (machines - 1) / machines, 1e-12) << n;
    for (const double share : plan.shares) EXPECT_NEAR(share, groups / machines, 1e-12);
    for (const double owned : plan.owned) EXPECT_NEAR(owned, 1.0 / groups, 1e-12);
  }
}

TEST(TwoLevelsTest, ASingleGroupIsTheFlatPlan) {
  for (const auto& [n, k] : {std::pair<size_t, size_t>{2, 0}, {2, 2}, {4, 1}, {9, 9}, {100, 30}}) {
    const TwoLevelInput input = Equal(n, k, 1);
    const Plan flat = MakePlan(input.machines).value();
    const TwoLevelPlan plan = MakeTwoLevelPlan(input).value();
    EXPECT_NEAR(plan.t_opt_s, *flat.t_opt_s, 1e-9);
    EXPECT_NEAR(Time(input, plan), *flat.t_opt_s, 1e-9);
  }
}

TEST(TwoLevelsTest, FourThousandMachinesTakeOnePerCentMoreThanAFlatPlan) {
  const TwoLevelInput input = Equal(4096, 2048, 64);
  const TwoLevelPlan plan = MakeTwoLevelPlan(input).value();
  // 64 GPU and 32 CPU machines: 1 + (m - 2 / G) x = (m + 2 - 2 / G) y and 64 x + 32 y = 1.
  const double less = 64 - 2.0 / 64, more = less + 2;
  const double x = (1 - 32 / more) / (64 + 32 * less / more);
  EXPECT_NEAR(plan.shares.front(), x, 1e-12);
  EXPECT_NEAR(plan.t_opt_s, 1 + less * x, 1e-9);
  const Plan flat = MakePlan(input.machines).value();
  EXPECT_NEAR(plan.t_opt_s / *flat.t_opt_s, 1.010, 0.001);
}

TEST(TwoLevelsTest, ACoreThatIsOversubscribedCarriesSumsAlone) {
  // 4 x 4 machines, whose uplinks have a quarter of the bandwidth of their machines together.
  const TwoLevelInput input = Equal(16, 0, 4, kBps);
  EXPECT_NEAR(MakeTwoLevelPlan(input).value().t_opt_s, 2 * 15.0 / 16, 1e-9)
      << "an uplink carries 1 + 2 / 4 of M";
  const Plan flat = MakePlan(input.machines).value();
  EXPECT_NEAR(FlatTimeBetweenGroups(input, flat), 6, 1e-9)
      << "4 x 3/4 of M to the servers of other groups, and 1/4 of M to each of 12 nodes";
  EXPECT_EQ(FlatTimeBetweenGroups(Equal(16, 0, 4), flat), *flat.t_opt_s);
  // A still narrower uplink is the floor.
  EXPECT_NEAR(MakeTwoLevelPlan(Equal(16, 0, 4, kBps / 2)).value().t_opt_s, 3, 1e-9);
}

TEST(TwoLevelsTest, AGroupBehindANarrowUplinkOwnsLess) {
  TwoLevelInput input = Equal(16, 0, 4, 10 * kBps);
  input.uplink_bps[2] = 0.6 * kBps;
  const TwoLevelPlan plan = MakeTwoLevelPlan(input).value();
  EXPECT_NEAR(Time(input, plan), plan.t_opt_s, 1e-9);
  EXPECT_LT(plan.owned[2], plan.owned[0]);
}

TEST(TwoLevelsTest, AMachineByItselfWhoseLinkIsTheFloorOwnsNothing) {
  TwoLevelInput input;
  input.machines.gpu_bps = {kBps, 4 * kBps, 4 * kBps, 4 * kBps, 4 * kBps};
  input.machines.bytes = kBytes;
  input.groups = {0, 1, 1, 2, 2};
  const TwoLevelPlan plan = MakeTwoLevelPlan(input).value();
  EXPECT_NEAR(plan.t_opt_s, 1, 1e-9) << "it receives all results, and sends all contributions";
  EXPECT_EQ(plan.shares[0], 1) << "of its group, which is the machine itself";
  EXPECT_NEAR(plan.owned[0], 0, 1e-9);
  EXPECT_NEAR(Time(input, plan), 1, 1e-6);
}

TEST(TwoLevelsTest, NoOtherSharesTakeLessTime) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> part(0, 1);
  for (int round = 0; round < 200; ++round) {
    const TwoLevelInput input = Random(&random);
    const TwoLevelPlan plan = MakeTwoLevelPlan(input).value();
    for (const double share : plan.shares) ASSERT_TRUE(share >= 0 && share <= 1) << share;
    ASSERT_LE(Time(input, plan), plan.t_opt_s * (1 + 1e-6)) << "the time is reached";
    // Shifts between two machines of a group, or between two groups.
    for (int change = 0; change < 200; ++change) {
      TwoLevelPlan other = plan;
      std::vector<double>& values = change % 4 == 0 ? other.owned : other.shares;
      const size_t from = random() % values.size(), to = random() % values.size();
      if (change % 4 != 0 && input.groups[from] != input.groups[to]) continue;
      const double shift = part(random) * values[from];
      values[from] -= shift;
      values[to] += shift;
      ASSERT_GE(Time(input, other), plan.t_opt_s * (1 - 1e-9)) << "round " << round;
    }
  }
}

TEST(TwoLevelsTest, SaysWhatIsWrongWithAnInput) {
  const auto message = [](const TwoLevelInput& input) {
    return std::string(MakeTwoLevelPlan(input).status().message());
  };
  TwoLevelInput input = Equal(4, 2, 2);
  input.groups.pop_back();
  EXPECT_EQ(message(input), "The plan has 6 machines, but groups for 5.");
  input = Equal(4, 2, 2);
  input.machines.cpu_bps[1] = 0;
  EXPECT_EQ(
      message(input),
      "A plan of two levels needs each machine's bandwidth, a number of bits per second above "
      "0, not 0.");
  input = Equal(4, 2, 2);
  input.groups = {0, 0, 0, 0, 1, 1};
  EXPECT_EQ(message(input), "Group 1 has no GPU machine.");
  input = Equal(4, 0, 2);
  input.machines.gpu_sums = {true, true, false, false};
  EXPECT_EQ(message(input),
            "Group 1 has no summation server: start one in it, or let its agents run theirs "
            "(--colocated-summation=true).");
  EXPECT_EQ(EqualGroups(HomogeneousInput(6, 3, kBytes, kBps), 2, 0).status().message(),
            "2 equal groups cannot be made of 6 GPU machines and 3 CPU machines: the number of "
            "groups has to divide both");
}

std::vector<TensorSize> Model(std::string_view name) {
  std::vector<TensorSize> tensors;
  const std::vector<ModelTensor> parameters = ModelTensors(name).value();
  for (const ModelTensor& t : parameters) tensors.push_back({t.elements, DType::kFloat32});
  return tensors;
}

TEST(TwoLevelRoundTest, ManySmallPartitionsApproachTheOptimum) {
  const std::vector<TensorSize> tensor = {{16'000'000, DType::kFloat32}};
  for (const size_t k : {0, 4, 8, 16}) {
    const TwoLevelSimulation fine = SimulateTwoLevelRound(Equal(16, k, 4), tensor, 1024).value();
    EXPECT_GE(fine.t_s, fine.t_opt_s);
    EXPECT_LT(fine.t_s / fine.t_opt_s, 1.005) << "k = " << k;
  }
}

TEST(TwoLevelRoundTest, AnAgentHasLinksToItsGroupAndToItsPeersInOtherGroups) {
  const std::vector<TensorSize> tensor = {{16'000'000, DType::kFloat32}};
  EXPECT_EQ(SimulateTwoLevelRound(Equal(16, 0, 4), tensor, 4096).value().links, 3u + 3u);
  EXPECT_EQ(SimulateTwoLevelRound(Equal(16, 8, 4), tensor, 4096).value().links, 5u + 3u);
}

TEST(TwoLevelRoundTest, FirstPartitionsPassThreeLinksBeforeResultsComeBack) {
  // One partition for each server of a group.
  constexpr double kPartition = 65'536;
  const std::vector<TensorSize> tensor = {{4 * 65'536 / 4, DType::kFloat32}};
  const TwoLevelSimulation round = SimulateTwoLevelRound(Equal(16, 0, 4), tensor, 65'536).value();
  EXPECT_EQ(round.partitions, 4u);
  EXPECT_NEAR(round.fill_s, (3 + 2 * 3) * kPartition * 8 / kBps, 1e-9);
}

TEST(TwoLevelRoundTest, FourThousandMachinesStayWithinTwoPerCentOfTheOptimum) {
  TwoLevelInput input = Equal(4096, 2048, 64);
  std::fill(input.machines.gpu_bps.begin(), input.machines.gpu_bps.end(), 100e9);
  std::fill(input.machines.cpu_bps.begin(), input.machines.cpu_bps.end(), 100e9);
  const TwoLevelSimulation round =
      SimulateTwoLevelRound(input, Model("bert-large"), 32 << 10).value();
  input.machines.bytes = 0;
  for (const TensorSize& t : Model("bert-large")) {
    input.machines.bytes += static_cast<double>(t.elements) * 4;
  }
  const Plan flat = MakePlan(input.machines).value();
  EXPECT_LT(round.t_s / *flat.t_opt_s, 1.02);
  EXPECT_LE(round.links, 160u);
}

}  // namespace
}  // namespace addend
