#include "lib/intranode/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "lib/base/strings.h"
#include "tests/unit/intranode/fixtures.h"

namespace addend {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Numbers = std::vector<uint32_t>;

// The GPUs of every switch that has some.
std::vector<Numbers> GpusBySwitch(const Topology& topology) {
  std::vector<Numbers> gpus;
  for (const PcieSwitch& s : topology.switches) {
    if (!s.gpus.empty()) gpus.push_back(s.gpus);
  }
  return gpus;
}

TEST(TopologyTest, ASwitchIsTheTopmostBridgeAboveItsDevices) {
  const Topology machine = Machine("paper-pcie");
  EXPECT_THAT(GpusBySwitch(machine), ElementsAre(Numbers{0, 1, 2, 3}, Numbers{4, 5, 6, 7}));
  ASSERT_EQ(machine.switches.size(), 3u);
  EXPECT_EQ(machine.switches[0].bus_id, "0000:16:00.0");
  EXPECT_EQ(machine.switches[0].numa_node, 0u);
  EXPECT_EQ(machine.switches[2].numa_node, 1u);
  EXPECT_EQ(machine.gpus[5].bus_id, "0000:88:00.0");
  EXPECT_EQ(machine.gpus[5].pcie_switch, 2u);
  EXPECT_THAT(machine.gpus[5].name, HasSubstr("V100"));
  EXPECT_FALSE(machine.NvlinkJoinsAll());
  EXPECT_FALSE(machine.HidesSwitches());
}

TEST(TopologyTest, ANicHasItsInterfacesAndRdmaDevicesAndALink) {
  const Topology machine = Machine("paper-pcie");
  ASSERT_EQ(machine.nics.size(), 1u);
  EXPECT_THAT(machine.nics[0].names, ElementsAre("eth0", "mlx5_0"));
  EXPECT_EQ(machine.nics[0].pcie_switch, 1u);
  EXPECT_THAT(machine.switches[1].gpus, IsEmpty());
}

TEST(TopologyTest, LinksHaveTheSpeedThatHwlocKnows) {
  const Topology machine = Machine("paper-pcie");
  EXPECT_NEAR(machine.gpus[0].link_bps, 126e9, 1e9);
  EXPECT_NEAR(machine.switches[0].link_bps, 126e9, 1e9);
  EXPECT_EQ(Machine("vm").gpus[0].link_bps, 0);
}

TEST(TopologyTest, GpusThatReachEachOtherByWayOfFurtherOnesAreJoined) {
  const Topology machine = Machine("paper-nvlink");
  EXPECT_THAT(GpusBySwitch(machine),
              ElementsAre(Numbers{0, 1}, Numbers{2, 3}, Numbers{4, 5}, Numbers{6, 7}));
  EXPECT_THAT(machine.switches[0].nics, ElementsAre(0));
  EXPECT_EQ(machine.nvlinks.size(), 16u);  // two squares with diagonals, four edges between them
  EXPECT_TRUE(machine.NvlinkJoinsAll());
}

TEST(TopologyTest, NvswitchesJoinAllGpusThatHaveLinksToSome) {
  const Topology machine = Machine("dgx");
  EXPECT_EQ(machine.gpus.size(), 8u);
  EXPECT_EQ(machine.nics.size(), 8u);
  EXPECT_EQ(machine.nvlinks.size(), 8u * 7 / 2);
  EXPECT_TRUE(machine.NvlinkJoinsAll());
  EXPECT_EQ(GpusBySwitch(machine).size(), 4u);
}

TEST(TopologyTest, AVirtualMachineMayHideItsSwitches) {
  const Topology machine = Machine("vm");
  EXPECT_TRUE(machine.HidesSwitches());
  EXPECT_EQ(machine.gpus.size(), 8u);
  EXPECT_EQ(GpusBySwitch(machine).size(), 8u);  // as far as visible, each has a link of its own
  EXPECT_TRUE(machine.switches[1].on_host_bridge);
  EXPECT_EQ(machine.switches[1].bus_id, machine.gpus[0].bus_id);
}

TEST(TopologyTest, OneGpuHidesNothingAndIsJoinedToNoOther) {
  const Topology machine = Machine("one-gpu");
  EXPECT_EQ(machine.gpus.size(), 1u);
  EXPECT_FALSE(machine.NvlinkJoinsAll());
  EXPECT_FALSE(machine.HidesSwitches());
}

TEST(TopologyTest, AMachineWithoutGpuHasItsNics) {
  const Topology machine = Machine("no-gpu");
  EXPECT_THAT(machine.gpus, IsEmpty());
  EXPECT_EQ(machine.nics.size(), 1u);
}

TEST(TopologyTest, ThisMachineCanBeReadAndRecorded) {
  const auto here = ReadTopology("");
  ASSERT_TRUE(here.ok()) << here.status();
  const std::string file = testing::TempDir() + "/this-machine.xml";
  ASSERT_TRUE(ExportTopology(file).ok());
  const auto again = ReadTopology(file);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(AllGpus(*again), AllGpus(*here));
  EXPECT_EQ(again->nvlinks, here->nvlinks);
  EXPECT_EQ(again->switches.size(), here->switches.size());
}

TEST(TopologyTest, AFileThatIsMissingIsNamed) {
  const absl::Status status = ReadTopology("/nowhere/machine.xml").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Message(status), "'/nowhere/machine.xml' cannot be read: No such file or directory");
}

TEST(TopologyTest, AFileWithoutATopologyIsRefused) {
  const std::string file = testing::TempDir() + "/not.xml";
  for (const char* text : {"", "switches: 4", "<topology version=\"2.0\"></topology>", "<a/>"}) {
    std::ofstream(file) << text;
    const absl::Status status = ReadTopology(file).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(Message(status), HasSubstr("is not a topology")) << text;
  }
}

// hwloc 2.9 does not survive it.
TEST(TopologyTest, AFileThatCrashesHwlocIsRefused) {
  std::ifstream machine(ADDEND_FIXTURES "/paper-pcie.xml");
  std::string text{std::istreambuf_iterator<char>(machine), {}};
  const std::string set = " complete_cpuset=\"0x00000001\"";
  const size_t of_the_machine = text.find(set);
  ASSERT_NE(of_the_machine, std::string::npos);
  const std::string file = testing::TempDir() + "/crashes.xml";
  std::ofstream(file) << text.erase(of_the_machine, set.size());
  const absl::Status status = ReadTopology(file).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), HasSubstr("is not a topology"));
}

TEST(TopologyTest, AFolderThatCannotBeWrittenIsNamed) {
  EXPECT_THAT(Message(ExportTopology("/nowhere/machine.xml")),
              HasSubstr("'/nowhere/machine.xml' cannot be written"));
}

TEST(RestrictTest, KeepsTheGpusThatAreUsedAndAllNics) {
  const Topology machine = Machine("paper-nvlink");
  const auto some = Restrict(machine, {machine.gpus[5].bus_id, machine.gpus[2].bus_id});
  ASSERT_TRUE(some.ok());
  EXPECT_THAT(AllGpus(*some), ElementsAre(machine.gpus[2].bus_id, machine.gpus[5].bus_id));
  // That of the NIC, and those of the two.
  ASSERT_EQ(some->switches.size(), 3u);
  EXPECT_THAT(some->switches[0].nics, ElementsAre(0));
  EXPECT_THAT(some->switches[1].gpus, ElementsAre(0));
  EXPECT_EQ(some->gpus[1].pcie_switch, 2u);
  EXPECT_EQ(some->nics[0].pcie_switch, 0u);
}

TEST(RestrictTest, UnusedGpusJoinNoOthers) {
  const Topology machine = Machine("paper-nvlink");
  const auto joined = [&](std::vector<size_t> gpus) {
    std::vector<std::string> ids;
    for (const size_t gpu : gpus) ids.push_back(machine.gpus[gpu].bus_id);
    return Restrict(machine, ids)->NvlinkJoinsAll();
  };
  EXPECT_TRUE(joined({0, 3}));
  EXPECT_TRUE(joined({0, 4}));
  EXPECT_FALSE(joined({0, 5}));
  EXPECT_TRUE(joined({0, 4, 5}));
}

TEST(RestrictTest, BusIdsMayBeWrittenAsNvmlAndCudaDo) {
  const Topology machine = Machine("dgx");
  const auto one = Restrict(machine, {"00000000:83:00.0", "0000:83:00.0"});
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_THAT(AllGpus(*one), ElementsAre("0000:83:00.0"));
  EXPECT_EQ(NormalBusId("00000000:3B:00.0"), "0000:3b:00.0");
  EXPECT_EQ(NormalBusId("00010000:3B:00.0"), "10000:3b:00.0");
  EXPECT_EQ(NormalBusId("3b:00.0"), "0000:3b:00.0");
}

TEST(RestrictTest, ABusIdWithoutAGpuIsRefused) {
  const absl::Status status = Restrict(Machine("one-gpu"), {"0000:05:00.0"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Message(status), "the machine has no NVIDIA GPU with the PCI bus id '0000:05:00.0'");
}

}  // namespace
}  // namespace addend
