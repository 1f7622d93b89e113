#include "lib/intranode/cost_model.h"

#include <algorithm>
#include <cstddef>
#include <set>

#include "lib/base/status_macros.h"

namespace addend {
namespace {

constexpr double kPaperLinkBps = 13.1e9 * 8;

double Bits(uint64_t bytes) { return static_cast<double>(bytes) * 8; }

// The smaller bandwidth; 0 stands for an unknown bandwidth.
double Slower(double a, double b) {
  if (a == 0 || b == 0) return std::max(a, b);
  return std::min(a, b);
}

// Adds the traffic of a group's members to the links of their switches. `pcie_switch`: of every
// rank.
void AddGroup(const std::vector<uint32_t>& group, const std::vector<uint32_t>& pcie_switch,
              const Layout& layout, bool nvlink, std::vector<SwitchLoad>* loads) {
  const auto size = static_cast<double>(group.size());
  // To host memory.
  if (layout.strategy == Strategy::kReduceBroadcast) {
    for (const uint32_t root : layout.roots) {
      (*loads)[pcie_switch[root]].gpus += 1 / static_cast<double>(layout.roots.size());
    }
  } else {
    for (const uint32_t rank : group) (*loads)[pcie_switch[rank]].gpus += 1 / size;
  }
  // From GPU to GPU: without NVLink a ring leaves every switch once, with a reduction and later
  // with its result.
  std::set<uint32_t> switches;
  for (const uint32_t rank : group) switches.insert(pcie_switch[rank]);
  if (nvlink || switches.size() < 2) return;
  const double ring = layout.strategy == Strategy::kReduceBroadcast ? 2 : 2 * (size - 1) / size;
  for (const uint32_t s : switches) (*loads)[s].gpus += ring;
}

}  // namespace

LinkTraffic TrafficOf(const PcieTree& tree, double x) {
  const double n = tree.gpus_per_switch;
  const double y = 1 - x;
  return {.gpu_switch = (2 * n - 1) / n * y + x, .switch_cpu = n * x + y};
}

double CopySeconds(const PcieTree& tree, uint64_t bytes, double x) {
  const LinkTraffic traffic = TrafficOf(tree, x);
  return Bits(bytes) * std::max(traffic.gpu_switch / tree.gpu_switch_bps,
                                traffic.switch_cpu / tree.switch_cpu_bps);
}

double BestCopyPart(const PcieTree& tree) {
  const double n = tree.gpus_per_switch;
  if (n < 2) return 0;  // a single GPU copies all its data in either way
  // More x takes from the GPUs' links, (2n - 1 - (n - 1) x) / n, and adds to the switch's link,
  // which carries 1 + (n - 1) x: the least is at the crossing.
  const double crossing = ((2 * n - 1) / n * tree.switch_cpu_bps - tree.gpu_switch_bps) /
                          ((n - 1) * (tree.gpu_switch_bps + tree.switch_cpu_bps / n));
  return std::clamp(crossing, 0.0, 1.0);
}

double RingSeconds(const PcieTree& tree, uint64_t bytes, double bottleneck_bps) {
  const double gpus = static_cast<double>(tree.switches) * tree.gpus_per_switch;
  return 2 * (gpus - 1) / gpus * Bits(bytes) / bottleneck_bps;
}

PcieTree PcieTreeOf(const Topology& topology) {
  PcieTree tree;
  for (const PcieSwitch& s : topology.switches) {
    if (s.gpus.empty()) continue;
    ++tree.switches;
    tree.gpus_per_switch = std::max(tree.gpus_per_switch, static_cast<uint32_t>(s.gpus.size()));
    tree.switch_cpu_bps = Slower(tree.switch_cpu_bps, s.link_bps);
    for (const uint32_t gpu : s.gpus) {
      tree.gpu_switch_bps = Slower(tree.gpu_switch_bps, topology.gpus[gpu].link_bps);
    }
  }
  if (tree.switch_cpu_bps == 0) tree.switch_cpu_bps = kPaperLinkBps;
  if (tree.gpu_switch_bps == 0) tree.gpu_switch_bps = kPaperLinkBps;
  return tree;
}

double CrossSwitchBps(const PcieTree& tree) { return tree.switch_cpu_bps * 80 / 105; }

absl::StatusOr<std::vector<SwitchLoad>> LoadSwitches(
    const Topology& topology, const std::vector<std::string>& bus_id_of_local_rank,
    const Layout& layout) {
  std::vector<uint32_t> pcie_switch;
  for (const std::string& bus_id : bus_id_of_local_rank) {
    ADDEND_ASSIGN_OR_RETURN(const uint32_t gpu, FindGpu(topology, bus_id));
    pcie_switch.push_back(topology.gpus[gpu].pcie_switch);
  }
  ADDEND_ASSIGN_OR_RETURN(const Topology used, Restrict(topology, bus_id_of_local_rank));
  std::vector<SwitchLoad> loads(topology.switches.size());
  for (const std::vector<uint32_t>& group : layout.groups) {
    AddGroup(group, pcie_switch, layout, used.NvlinkJoinsAll(), &loads);
  }
  for (const Nic& nic : topology.nics) {
    loads[nic.pcie_switch].nics += 1 / static_cast<double>(topology.nics.size());
  }
  return loads;
}

}  // namespace addend
