#include "lib/plan/simulation.h"

#include <gtest/gtest.h>

#include <numeric>

#include "lib/plan/hash_assignment.h"
#include "lib/plan/models.h"

namespace addend {
namespace {

constexpr double kBps = 400e6;
constexpr uint64_t kPartition = 128 << 10;

std::vector<TensorSize> OneTensor(uint64_t bytes) { return {{bytes / 4, DType::kFloat32}}; }

std::vector<TensorSize> Model(std::string_view name) {
  std::vector<TensorSize> tensors;
  const std::vector<ModelTensor> parameters = ModelTensors(name).value();
  for (const ModelTensor& t : parameters) tensors.push_back({t.elements, DType::kFloat32});
  return tensors;
}

Simulation Simulate(size_t n, size_t k, const std::vector<TensorSize>& tensors, uint64_t partition,
                    AssignmentKind kind = AssignmentKind::kBalanced) {
  return SimulateRound(HomogeneousInput(n, k, 0, kBps), tensors, partition, kind).value();
}

TEST(SimulationTest, ManySmallPartitionsApproachTheOptimum) {
  for (size_t k = 0; k <= 4; ++k) {
    const Simulation fine = Simulate(4, k, OneTensor(64'000'000), 4096);
    EXPECT_GE(fine.t_s, fine.t_opt_s);
    EXPECT_LT(fine.t_s / fine.t_opt_s, 1.003) << "k = " << k;
  }
}

TEST(SimulationTest, APipelineOfLargePartitionsIsNeverFull) {
  const Simulation small = Simulate(4, 2, OneTensor(64'000'000), kPartition);
  const Simulation large = Simulate(4, 2, OneTensor(64'000'000), 4 << 20);
  EXPECT_NEAR(small.fill_s, 5.0 * kPartition * 8 / kBps, 1e-9) << "one for each other server";
  const Simulation ring = Simulate(4, 0, OneTensor(64'000'000), kPartition);
  EXPECT_NEAR(ring.fill_s, 3.0 * kPartition * 8 / kBps, 1e-9) << "its own contribution is there";
  const Simulation servers = Simulate(4, 4, OneTensor(64'000'000), kPartition);
  EXPECT_NEAR(servers.fill_s, 4.0 * kPartition * 8 / kBps, 1e-9) << "n over a server's link";
  EXPECT_GT(large.t_s / large.t_opt_s, 1.15);
}

TEST(SimulationTest, TheBusiestLinkSetsThePace) {
  PlanInput machines = HomogeneousInput(4, 2, 0, kBps);
  machines.cpu_bps[1] = kBps / 10;
  // A single partition cannot be divided: its server carries it n times, for any shares.
  const Simulation one =
      SimulateRound(machines, OneTensor(1'024'000), 1'024'000, AssignmentKind::kBalanced).value();
  EXPECT_EQ(one.partitions, 1u);
  EXPECT_NEAR(one.imbalance * one.t_opt_s, 4 * 1.024e6 * 8 / kBps, 1e-9);
}

TEST(SimulationTest, HashingIsBalancedOnAverageOnly) {
  const Simulation balanced = Simulate(8, 4, Model("resnet50"), kPartition);
  const Simulation hashed = Simulate(8, 4, Model("resnet50"), kPartition, AssignmentKind::kHash);
  EXPECT_LT(balanced.imbalance, 1.02);
  EXPECT_GT(hashed.imbalance, balanced.imbalance);
}

TEST(SimulationTest, EncodedPartitionsApproachTheEncodedOptimum) {
  for (size_t k = 0; k <= 4; ++k) {
    PlanInput machines = HomogeneousInput(4, k, 0, kBps);
    const Simulation raw =
        SimulateRound(machines, OneTensor(64'000'000), 4096, AssignmentKind::kBalanced).value();
    EXPECT_EQ(raw.t_opt_encoded_s, raw.t_opt_s);
    machines.ratios = {0.5, 0.8};
    const Simulation encoded =
        SimulateRound(machines, OneTensor(64'000'000), 4096, AssignmentKind::kBalanced).value();
    EXPECT_EQ(encoded.t_opt_s, raw.t_opt_s);
    EXPECT_LT(encoded.t_opt_encoded_s, 0.81 * raw.t_opt_s);
    EXPECT_NEAR(encoded.imbalance, 1, 0.002) << "k = " << k;
    EXPECT_LT(encoded.t_s / encoded.t_opt_encoded_s, 1.003);
    EXPECT_NEAR(encoded.fill_s, raw.fill_s / 2, 1e-12) << "the links fill with contributions";
  }
}

TEST(SimulationTest, OneMachineByItselfHasNothingToSend) {
  EXPECT_EQ(Simulate(1, 0, OneTensor(1'000'000), kPartition).t_s, 0);
  EXPECT_EQ(Simulate(4, 2, {}, kPartition).t_s, 0) << "nor has one without tensors";
}

TEST(HashAssignmentTest, SharesAreThoseOfTheRange) {
  constexpr size_t kN = 4, kK = 2;
  const auto assignments = AssignByHash(OneTensor(400'000'000), 4096, kN, kK).value();
  ASSERT_EQ(assignments.size(), 1u);
  std::vector<double> counts(kN + kK, 0);
  for (const uint32_t server : assignments[0].servers) ++counts.at(server);
  const double total = std::accumulate(counts.begin(), counts.end(), 0.0);
  // Of the range n^2 + kn - 2k = 20, a GPU machine has n-k = 2, a CPU machine 2(n-1) = 6.
  for (size_t i = 0; i < kN; ++i) EXPECT_NEAR(counts[i] / total, 0.1, 0.005);
  for (size_t j = kN; j < kN + kK; ++j) EXPECT_NEAR(counts[j] / total, 0.3, 0.005);
}

TEST(HashAssignmentTest, IsTheSameOnEveryMachine) {
  const auto once = AssignByHash(Model("vgg16"), kPartition, 8, 8).value();
  const auto again = AssignByHash(Model("vgg16"), kPartition, 8, 8).value();
  for (size_t i = 0; i < once.size(); ++i) EXPECT_EQ(once[i].servers, again[i].servers);
}

TEST(HashAssignmentTest, RefusesInputOutsideTheFormula) {
  EXPECT_FALSE(AssignByHash(OneTensor(4), kPartition, 0, 0).ok());
  EXPECT_FALSE(AssignByHash(OneTensor(4), kPartition, 2, 3).ok());
  EXPECT_FALSE(AssignByHash(OneTensor(4), 0, 2, 1).ok());
  EXPECT_TRUE(AssignByHash(OneTensor(4), kPartition, 1, 1).ok());
}

}  // namespace
}  // namespace addend
