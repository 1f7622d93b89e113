#include "lib/intranode/cost_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/intranode/fixtures.h"

namespace addend {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;

constexpr double kGbps = 1e9;
constexpr uint64_t kGigabyte = 1'000'000'000;

// The paper's example: 13.1 GB/s on both links.
PcieTree PaperTree() {
  return {.switches = 2,
          .gpus_per_switch = 4,
          .gpu_switch_bps = 13.1e9 * 8,
          .switch_cpu_bps = 13.1e9 * 8};
}

TEST(CostModelTest, LinkLoadsFollowEquations8And9) {
  const LinkTraffic assisted = TrafficOf(PaperTree(), 0);
  EXPECT_DOUBLE_EQ(assisted.switch_cpu, 1);
  EXPECT_DOUBLE_EQ(assisted.gpu_switch, 7.0 / 4);
  const LinkTraffic copied = TrafficOf(PaperTree(), 1);
  EXPECT_DOUBLE_EQ(copied.switch_cpu, 4);
  EXPECT_DOUBLE_EQ(copied.gpu_switch, 1);
  for (const double x : {0.0, 0.2, 0.5, 1.0}) {
    EXPECT_DOUBLE_EQ(TrafficOf(PaperTree(), x).switch_cpu, 3 * x + 1);
    EXPECT_DOUBLE_EQ(TrafficOf(PaperTree(), x).gpu_switch, (7 - 3 * x) / 4);
  }
}

TEST(CostModelTest, HasThePapersOptimum) {
  const PcieTree tree = PaperTree();
  const double best = BestCopyPart(tree);
  EXPECT_DOUBLE_EQ(best, 1.0 / 5);
  EXPECT_NEAR(CopySeconds(tree, kGigabyte, best), 0.122, 5e-4);
  EXPECT_NEAR(CopySeconds(tree, kGigabyte, 0), 0.134, 5e-4);
  const double excess = CopySeconds(tree, kGigabyte, 0) / CopySeconds(tree, kGigabyte, best) - 1;
  EXPECT_NEAR(excess, 0.09, 5e-3);
}

TEST(CostModelTest, CpuAssistedIsAQuarterFasterThanThePapersRing) {
  PcieTree tree = PaperTree();
  tree.gpu_switch_bps = tree.switch_cpu_bps = 105 * kGbps;
  EXPECT_DOUBLE_EQ(CrossSwitchBps(tree), 80 * kGbps);
  const double assisted = CopySeconds(tree, kGigabyte, 0);
  const double ring = RingSeconds(tree, kGigabyte, 80 * kGbps);
  EXPECT_NEAR(1 - assisted / ring, 0.238, 5e-4);
  // With the rounded 13.1 GB/s, as the paper has it.
  EXPECT_NEAR(1 - CopySeconds(PaperTree(), kGigabyte, 0) / ring, 0.237, 5e-4);
}

TEST(CostModelTest, TheOptimumIsNoWorseThanAnyOtherPart) {
  for (const uint32_t n : {1, 2, 4, 8}) {
    for (const double gpu_gbps : {10, 50, 100, 400}) {
      const PcieTree tree = {.switches = 2,
                             .gpus_per_switch = n,
                             .gpu_switch_bps = gpu_gbps * kGbps,
                             .switch_cpu_bps = 100 * kGbps};
      const double best = CopySeconds(tree, kGigabyte, BestCopyPart(tree));
      for (int i = 0; i <= 100; ++i) {
        EXPECT_LE(best, CopySeconds(tree, kGigabyte, i / 100.0) * (1 + 1e-12)) << n << " " << i;
      }
    }
  }
}

TEST(CostModelTest, FastGpuLinksNeedNoCopiesAndSlowOnesNothingElse) {
  PcieTree tree = PaperTree();
  tree.gpu_switch_bps = 2 * tree.switch_cpu_bps;
  EXPECT_EQ(BestCopyPart(tree), 0);
  tree.gpu_switch_bps = tree.switch_cpu_bps / 5;
  EXPECT_EQ(BestCopyPart(tree), 1);
  tree.gpus_per_switch = 1;
  EXPECT_EQ(BestCopyPart(tree), 0);
}

TEST(CostModelTest, AMachineIsItsFullestSwitchAndItsSlowestLinks) {
  Topology machine = Machine("paper-pcie");
  machine.gpus[6].link_bps = 63 * kGbps;
  machine.switches[2].gpus.pop_back();
  const PcieTree tree = PcieTreeOf(machine);
  EXPECT_EQ(tree.switches, 2u);
  EXPECT_EQ(tree.gpus_per_switch, 4u);
  EXPECT_DOUBLE_EQ(tree.gpu_switch_bps, 63 * kGbps);
  EXPECT_NEAR(tree.switch_cpu_bps, 126 * kGbps, kGbps);
}

TEST(CostModelTest, LinksOfUnknownSpeedHaveThePapers) {
  const PcieTree tree = PcieTreeOf(Machine("vm"));
  EXPECT_DOUBLE_EQ(tree.gpu_switch_bps, 104.8 * kGbps);
  EXPECT_DOUBLE_EQ(tree.switch_cpu_bps, 104.8 * kGbps);
}

// The GPUs' traffic on the link of every switch with GPUs.
std::vector<double> GpuLoads(const std::string& name, Strategy strategy) {
  const Topology machine = Machine(name);
  const auto layout = ChooseLayout(machine, AllGpus(machine), strategy);
  const auto loads = LoadSwitches(machine, AllGpus(machine), *layout);
  EXPECT_TRUE(loads.ok()) << loads.status();
  std::vector<double> with_gpus;
  for (size_t i = 0; i < loads->size(); ++i) {
    if (!machine.switches[i].gpus.empty()) with_gpus.push_back((*loads)[i].gpus);
  }
  return with_gpus;
}

double NicShare(const std::string& name, Strategy strategy, size_t pcie_switch) {
  const Topology machine = Machine(name);
  const auto layout = ChooseLayout(machine, AllGpus(machine), strategy);
  return LoadSwitches(machine, AllGpus(machine), *layout)->at(pcie_switch).NicShare();
}

TEST(SwitchLoadTest, OverPcieCpuAssistedPutsLeastOnEveryLink) {
  EXPECT_THAT(GpuLoads("paper-pcie", Strategy::kCpuAssisted), ElementsAre(1, 1));
  EXPECT_THAT(GpuLoads("paper-pcie", Strategy::kCopy), ElementsAre(4, 4));
  // The ring of eight GPUs, 7 M / 4, and half of the copies.
  const auto ring = DoubleNear(1.75 + 0.5, 1e-12);
  EXPECT_THAT(GpuLoads("paper-pcie", Strategy::kReduceScatter), ElementsAre(ring, ring));
  const auto root = DoubleNear(2.5, 1e-12);
  EXPECT_THAT(GpuLoads("paper-pcie", Strategy::kReduceBroadcast), ElementsAre(root, root));
}

TEST(SwitchLoadTest, OverNvlinkReduceAndBroadcastLeavesTheNicItsLink) {
  const auto third = DoubleNear(1.0 / 3, 1e-12);
  EXPECT_THAT(GpuLoads("paper-nvlink", Strategy::kReduceBroadcast),
              ElementsAre(0, third, third, third));
  EXPECT_DOUBLE_EQ(NicShare("paper-nvlink", Strategy::kReduceBroadcast, 0), 1);
  EXPECT_THAT(GpuLoads("paper-nvlink", Strategy::kReduceScatter),
              ElementsAre(0.25, 0.25, 0.25, 0.25));
  EXPECT_DOUBLE_EQ(NicShare("paper-nvlink", Strategy::kReduceScatter, 0), 0.8);
  EXPECT_DOUBLE_EQ(NicShare("paper-nvlink", Strategy::kReduceScatter, 1), 0);  // there is no NIC
}

TEST(SwitchLoadTest, SeveralNicsDivideTheTraffic) {
  // Two of eight NICs carry as much as two of eight GPUs copy.
  EXPECT_DOUBLE_EQ(NicShare("dgx", Strategy::kReduceScatter, 0), 0.5);
  EXPECT_DOUBLE_EQ(NicShare("dgx", Strategy::kCopy, 0), 0.25 / 2.25);
}

TEST(SwitchLoadTest, ASharedLinkIsSparedMostByCpuAssistedWhereThereIsNoNvlink) {
  EXPECT_DOUBLE_EQ(NicShare("pcie-shared-nic", Strategy::kCpuAssisted, 0), 0.5);
  EXPECT_LT(NicShare("pcie-shared-nic", Strategy::kReduceBroadcast, 0), 0.5);
  EXPECT_LT(NicShare("pcie-shared-nic", Strategy::kReduceScatter, 0), 0.5);
}

}  // namespace
}  // namespace addend
