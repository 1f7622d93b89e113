#include "lib/intranode/strategy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_join.h"
#include "lib/base/strings.h"
#include "tests/unit/intranode/fixtures.h"

namespace addend {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Ranks = std::vector<uint32_t>;

Layout Choose(const Topology& machine, const std::vector<std::string>& ranks,
              std::optional<Strategy> demanded = std::nullopt) {
  auto layout = ChooseLayout(machine, ranks, demanded);
  EXPECT_TRUE(layout.ok()) << layout.status();
  return layout.ok() ? *std::move(layout) : Layout{};
}

Layout Choose(const std::string& machine, std::optional<Strategy> demanded = std::nullopt) {
  const Topology topology = Machine(machine);
  return Choose(topology, AllGpus(topology), demanded);
}

std::string Why(const Layout& layout) { return absl::StrJoin(layout.why, " "); }

const Ranks kAllEight = {0, 1, 2, 3, 4, 5, 6, 7};

TEST(StrategyTest, NamesAreParsed) {
  for (const Strategy strategy : {Strategy::kCopy, Strategy::kCpuAssisted,
                                  Strategy::kReduceBroadcast, Strategy::kReduceScatter}) {
    EXPECT_EQ(*ParseStrategy(NameOf(strategy)), strategy);
  }
  const absl::Status status = ParseStrategy("ring").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), HasSubstr("use copy, cpu-assisted, reduce-broadcast or reduce-sc"));
}

TEST(RuleTest, WithoutNvlinkTheGpusOfASwitchAggregateAndTheHostSumsAcross) {
  const Layout layout = Choose("paper-pcie");
  EXPECT_EQ(layout.strategy, Strategy::kCpuAssisted);
  EXPECT_THAT(layout.groups, ElementsAre(Ranks{0, 1, 2, 3}, Ranks{4, 5, 6, 7}));
  EXPECT_TRUE(layout.scatter);
  EXPECT_THAT(layout.roots, IsEmpty());
  EXPECT_THAT(Why(layout), HasSubstr("S_n = 0; with GPUs alone: S_g = 2"));
}

TEST(RuleTest, WithNvlinkAndANicOnSomeSwitchesTheOthersHaveTheRoots) {
  const Layout layout = Choose("paper-nvlink");
  EXPECT_EQ(layout.strategy, Strategy::kReduceBroadcast);
  EXPECT_THAT(layout.groups, ElementsAre(kAllEight));
  EXPECT_FALSE(layout.scatter);
  EXPECT_THAT(layout.roots, ElementsAre(2, 3, 4, 5, 6, 7));
  EXPECT_THAT(Why(layout), HasSubstr("S_n = 1; with GPUs alone: S_g = 3"));
}

TEST(RuleTest, WithNvlinkAndEqualSwitchesAllReduceScatter) {
  const Layout layout = Choose("dgx");
  EXPECT_EQ(layout.strategy, Strategy::kReduceScatter);
  EXPECT_THAT(layout.groups, ElementsAre(kAllEight));
  EXPECT_TRUE(layout.scatter);
  EXPECT_THAT(Why(layout), HasSubstr("S_n = 4; with GPUs alone: S_g = 0"));
}

TEST(RuleTest, WithoutNvlinkNothingIsReducedAcrossSwitchesThoughANicSharesOne) {
  const Layout layout = Choose("pcie-shared-nic");
  EXPECT_EQ(layout.strategy, Strategy::kCpuAssisted);
  EXPECT_THAT(layout.groups, ElementsAre(Ranks{0, 1}, Ranks{2, 3}));
  EXPECT_THAT(Why(layout), HasSubstr("S_n = 1; with GPUs alone: S_g = 1"));
}

TEST(RuleTest, WhereSwitchesAreHiddenEachGpuCopies) {
  const Layout layout = Choose("vm");
  EXPECT_EQ(layout.strategy, Strategy::kCopy);
  EXPECT_EQ(layout.groups.size(), 8u);
  EXPECT_FALSE(layout.scatter);
  EXPECT_THAT(Why(layout), HasSubstr("hides its PCIe switches"));
  EXPECT_THAT(Why(layout), HasSubstr("--intranode overrides"));
}

TEST(RuleTest, HiddenSwitchesDoNotMatterToNvlink) {
  Topology machine = Machine("vm");
  for (uint32_t gpu = 1; gpu < machine.gpus.size(); ++gpu) machine.nvlinks.emplace_back(0, gpu);
  const Layout layout = Choose(machine, AllGpus(machine));
  EXPECT_EQ(layout.strategy, Strategy::kReduceScatter);
  EXPECT_THAT(layout.groups, ElementsAre(kAllEight));
}

TEST(RuleTest, OneRankCopies) {
  const Layout layout = Choose("one-gpu");
  EXPECT_EQ(layout.strategy, Strategy::kCopy);
  EXPECT_THAT(layout.groups, ElementsAre(Ranks{0}));
  const Topology machine = Machine("dgx");
  EXPECT_EQ(Choose(machine, {machine.gpus[3].bus_id}).strategy, Strategy::kCopy);
}

TEST(RuleTest, RanksThatShareAGpuCopy) {
  const Topology machine = Machine("dgx");
  const Layout layout =
      Choose(machine, {machine.gpus[0].bus_id, machine.gpus[1].bus_id, machine.gpus[0].bus_id});
  EXPECT_EQ(layout.strategy, Strategy::kCopy);
  EXPECT_THAT(layout.groups, ElementsAre(Ranks{0}, Ranks{1}, Ranks{2}));
}

TEST(RuleTest, OnlyTheGpusThatAreUsedCount) {
  const Topology machine = Machine("paper-nvlink");
  const auto on = [&](size_t a, size_t b) {
    return Choose(machine, {machine.gpus[a].bus_id, machine.gpus[b].bus_id}).strategy;
  };
  EXPECT_EQ(on(2, 3), Strategy::kReduceScatter);  // the NIC's switch has no GPU then
  EXPECT_EQ(on(0, 1), Strategy::kReduceScatter);  // and here no other switch has
  EXPECT_EQ(on(0, 2), Strategy::kReduceBroadcast);
  EXPECT_EQ(on(0, 5), Strategy::kCpuAssisted);  // no NVLink between these two
}

TEST(RuleTest, GroupsAreInTheOrderOfTheirFirstRanks) {
  const Topology machine = Machine("paper-pcie");
  const auto id = [&](size_t gpu) { return machine.gpus[gpu].bus_id; };
  const Layout layout = Choose(machine, {id(5), id(1), id(4), id(0)});
  EXPECT_THAT(layout.groups, ElementsAre(Ranks{0, 2}, Ranks{1, 3}));
}

TEST(RuleTest, AGpuThatIsNotThereIsRefused) {
  const absl::Status status = ChooseLayout(Machine("dgx"), {"0000:77:00.0"}, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), HasSubstr("0000:77:00.0"));
}

TEST(DemandedTest, CpuAssistedWithHiddenSwitchesGroupsByNumaNode) {
  Topology machine = Machine("vm");
  for (uint32_t gpu = 4; gpu < 8; ++gpu) {
    machine.switches[machine.gpus[gpu].pcie_switch].numa_node = 1;
  }
  const Layout layout = Choose(machine, AllGpus(machine), Strategy::kCpuAssisted);
  EXPECT_THAT(layout.groups, ElementsAre(Ranks{0, 1, 2, 3}, Ranks{4, 5, 6, 7}));
  EXPECT_TRUE(layout.scatter);
}

TEST(DemandedTest, IsUsedAndTheRulesChoiceIsNamed) {
  const Layout layout = Choose("dgx", Strategy::kCpuAssisted);
  EXPECT_EQ(layout.groups.size(), 4u);
  EXPECT_THAT(Why(layout),
              HasSubstr("cpu-assisted was demanded; the rule would choose reduce-scatter."));
  EXPECT_EQ(Choose("dgx", Strategy::kCopy).groups.size(), 8u);
}

TEST(DemandedTest, WithoutADifferenceTheRulesReasonIsGiven) {
  EXPECT_EQ(Choose("dgx", Strategy::kReduceScatter).why, Choose("dgx").why);
}

TEST(DemandedTest, ReduceBroadcastHasAllAsRootsWhereEachCompetesWithANic) {
  EXPECT_THAT(Choose("dgx", Strategy::kReduceBroadcast).roots, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(Choose("pcie-shared-nic", Strategy::kReduceBroadcast).roots, ElementsAre(2, 3));
}

TEST(DemandedTest, AGroupOfOneRankScattersNothing) {
  const Topology machine = Machine("paper-pcie");
  const std::vector<std::string> apart = {machine.gpus[0].bus_id, machine.gpus[4].bus_id};
  EXPECT_FALSE(Choose(machine, apart).scatter);
  EXPECT_FALSE(Choose("one-gpu", Strategy::kReduceScatter).scatter);
}

TEST(DemandedTest, StrategiesThatNeedAGpuPerRankAreRefusedForSharedGpus) {
  const Topology machine = Machine("one-gpu");
  const std::vector<std::string> ranks(2, machine.gpus[0].bus_id);
  EXPECT_EQ(Choose(machine, ranks, Strategy::kCopy).groups.size(), 2u);
  for (const Strategy strategy :
       {Strategy::kCpuAssisted, Strategy::kReduceBroadcast, Strategy::kReduceScatter}) {
    const absl::Status status = ChooseLayout(machine, ranks, strategy).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(Message(status), HasSubstr("needs a GPU of its own for every local rank"));
  }
}

absl::StatusOr<uint32_t> Direct(const std::string& machine, const std::vector<std::string>& nics,
                                std::optional<Strategy> demanded = std::nullopt) {
  const Topology topology = Machine(machine);
  return ChooseDirectRank(topology, AllGpus(topology), nics, Choose(machine, demanded));
}

TEST(DirectTest, TheGpuBesideTheNicIsRead) {
  EXPECT_EQ(*Direct("paper-nvlink", {"mlx5_0:1"}), 0u);
  EXPECT_EQ(*Direct("dgx", {"mlx5_5", "mlx5_4"}, Strategy::kReduceBroadcast), 4u);
}

TEST(DirectTest, OneGpuHasAllOfItsContribution) {
  const Topology dgx = Machine("dgx");
  const std::vector<std::string> third = {AllGpus(dgx)[2]};
  const Layout layout = Choose(dgx, third);
  EXPECT_EQ(*ChooseDirectRank(dgx, third, {"mlx5_2:1"}, layout), 0u);
  const absl::Status far = ChooseDirectRank(dgx, third, {"mlx5_0:1"}, layout).status();
  EXPECT_EQ(Message(far),
            "no GPU of this node's ranks shares a PCIe switch with all RDMA devices in use "
            "(mlx5_0:1): name those beside one with --rdma-device");
  EXPECT_FALSE(ChooseDirectRank(dgx, third, {"mlx5_2:1", "mlx5_0:1"}, layout).ok());
}

TEST(DirectTest, PartsOnSeveralGpusAreNotRead) {
  for (const char* const machine : {"paper-pcie", "dgx"}) {
    const absl::Status status = Direct(machine, {"mlx5_0:1"}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(Message(status), HasSubstr("--intranode=reduce-broadcast"));
  }
}

TEST(DirectTest, WithoutRdmaNoGpuIsRead) {
  EXPECT_EQ(Message(Direct("paper-nvlink", {}).status()), "there is no RDMA device to read GPUs");
}

}  // namespace
}  // namespace addend
