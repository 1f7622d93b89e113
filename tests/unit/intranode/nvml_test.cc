#include "lib/intranode/nvml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/unit/intranode/fake_nvml.h"
#include "tests/unit/intranode/fixtures.h"

namespace addend {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Pair = std::pair<uint32_t, uint32_t>;

// Makes hwloc use a machine of tests/data/topology as the present machine.
class NvmlTest : public ::testing::Test {
 protected:
  NvmlTest() {
    const std::string file = absl::StrFormat("%s/pcie-shared-nic.xml", ADDEND_FIXTURES);
    setenv("HWLOC_XMLFILE", file.c_str(), 1);
    TheFakeNvml() = {.bus_ids = {"00000000:18:00.0", "00000000:19:00.0", "00000000:3C:00.0",
                                 "00000000:3D:00.0"}};
  }
  ~NvmlTest() override { unsetenv("HWLOC_XMLFILE"); }

  static Topology Read() {
    const auto topology = ReadTopology("");
    EXPECT_TRUE(topology.ok()) << topology.status();
    return topology.value_or(Topology{});
  }
};

TEST_F(NvmlTest, LinksBetweenGpusJoinThem) {
  TheFakeNvml().links = {{0, 1}, {1, 3}, {0, 1}, {3, 2}};
  const Topology machine = Read();
  EXPECT_THAT(machine.nvlinks, ElementsAre(Pair(0, 1), Pair(1, 3), Pair(2, 3)));
  EXPECT_TRUE(machine.NvlinkJoinsAll());
  EXPECT_THAT(machine.notes, IsEmpty());
}

TEST_F(NvmlTest, LinksToNvswitchesJoinAllThatHaveSome) {
  constexpr int kSwitch = FakeNvml::kSwitch;
  TheFakeNvml().links = {{0, kSwitch}, {2, kSwitch}, {3, kSwitch}, {3, kSwitch}};
  const Topology machine = Read();
  EXPECT_THAT(machine.nvlinks, ElementsAre(Pair(0, 2), Pair(0, 3), Pair(2, 3)));
  EXPECT_FALSE(machine.NvlinkJoinsAll());
}

TEST_F(NvmlTest, LinksThatAreDownJoinNoGpus) {
  TheFakeNvml().links = {{0, 1}, {2, 3}};
  TheFakeNvml().down = {1};
  EXPECT_THAT(Read().nvlinks, ElementsAre(Pair(0, 1)));
}

TEST_F(NvmlTest, GpusWithoutLinksAreKnownToHaveNone) {
  const Topology machine = Read();
  EXPECT_THAT(machine.nvlinks, IsEmpty());
  EXPECT_THAT(machine.notes, IsEmpty());
}

TEST_F(NvmlTest, ADriverThatDoesNotAnswerLeavesANote) {
  TheFakeNvml().init_error = 9;
  EXPECT_EQ(ReadNvlinks().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Read().notes, ElementsAre(HasSubstr("NVIDIA's driver does not answer")));
}

TEST_F(NvmlTest, ARecordContainsTheAnswersOfNvml) {
  TheFakeNvml().links = {{0, 2}, {1, 3}};
  const std::string file = testing::TempDir() + "/with-nvlink.xml";
  ASSERT_TRUE(ExportTopology(file).ok());
  TheFakeNvml().links = {};
  const auto again = ReadTopology(file);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_THAT(again->nvlinks, ElementsAre(Pair(0, 2), Pair(1, 3)));
}

}  // namespace
}  // namespace addend
