// Any content of a file for --topology: it is refused, or every strategy is chosen or refused for
// ranks on its GPUs, and each rank is in a single group.
#include <hwloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "lib/base/fd.h"
#include "lib/intranode/cost_model.h"
#include "lib/intranode/strategy.h"
#include "lib/intranode/topology.h"
#include "tests/fuzz/check.h"

namespace addend::fuzz {
namespace {

absl::StatusOr<Topology> Read(const uint8_t* data, size_t size) {
  const UniqueFd file(::memfd_create("topology", MFD_CLOEXEC));
  FUZZ_CHECK(::write(file.get(), data, size) == static_cast<ssize_t>(size), "memory");
  return ReadTopology(absl::StrFormat("/proc/self/fd/%d", file.get()));
}

void CheckPlaces(const Topology& machine) {
  for (const Gpu& gpu : machine.gpus) {
    FUZZ_CHECK(gpu.pcie_switch < machine.switches.size(), "every GPU has a switch");
    FUZZ_CHECK(gpu.link_bps >= 0 && std::isfinite(gpu.link_bps), "a speed, or none");
  }
  for (const Nic& nic : machine.nics) {
    FUZZ_CHECK(nic.pcie_switch < machine.switches.size(), "every NIC has a switch");
  }
  for (const auto& [a, b] : machine.nvlinks) {
    FUZZ_CHECK(a < b && b < machine.gpus.size(), "NVLink joins two GPUs");
  }
}

void CheckLayout(const Topology& machine, const std::vector<std::string>& ranks,
                 const std::vector<std::string>& nics, std::optional<Strategy> demanded) {
  const absl::StatusOr<Layout> layout = ChooseLayout(machine, ranks, demanded);
  if (!layout.ok()) return;
  std::multiset<uint32_t> placed;
  for (const auto& group : layout->groups) placed.insert(group.begin(), group.end());
  FUZZ_CHECK(placed.size() == ranks.size(), "each rank is in one group");
  for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
    FUZZ_CHECK(placed.count(rank) == 1, "each rank is in one group");
  }
  for (const uint32_t root : layout->roots) FUZZ_CHECK(root < ranks.size(), "a root is a rank");
  FUZZ_CHECK(LoadSwitches(machine, ranks, *layout).ok(), "what was chosen has a load");
  if (const auto direct = ChooseDirectRank(machine, ranks, nics, *layout); direct.ok()) {
    FUZZ_CHECK(*direct < ranks.size(), "it is a rank");
  }
}

}  // namespace
}  // namespace addend::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace addend;
  // hwloc keeps its plugins loaded while a topology exists.
  static hwloc_topology_t loaded = [] {
    hwloc_topology_t empty = nullptr;
    hwloc_topology_init(&empty);
    return empty;
  }();
  (void)loaded;
  const absl::StatusOr<Topology> machine = fuzz::Read(data, size);
  if (!machine.ok()) return 0;
  fuzz::CheckPlaces(*machine);
  std::vector<std::string> ranks;
  std::vector<std::string> nics;
  for (const Gpu& gpu : machine->gpus) ranks.push_back(gpu.bus_id);
  for (const Nic& nic : machine->nics) nics.push_back(nic.names.front());
  const PcieTree tree = PcieTreeOf(*machine);
  const double copied = BestCopyPart(tree);
  FUZZ_CHECK(copied >= 0 && copied <= 1, "a part of the data");
  if (tree.switches > 0) {
    FUZZ_CHECK(CopySeconds(tree, 1 << 20, copied) >= 0 &&
                   RingSeconds(tree, 1 << 20, CrossSwitchBps(tree)) >= 0,
               "it takes some time");
  }
  std::vector<std::optional<Strategy>> strategies = {std::nullopt};
  for (const char* name : {"copy", "cpu-assisted", "reduce-broadcast", "reduce-scatter"}) {
    strategies.emplace_back(*ParseStrategy(name));
  }
  for (const auto& strategy : strategies) {
    fuzz::CheckLayout(*machine, ranks, nics, strategy);
    if (!ranks.empty()) fuzz::CheckLayout(*machine, {ranks.back(), ranks.front()}, nics, strategy);
  }
  return 0;
}
