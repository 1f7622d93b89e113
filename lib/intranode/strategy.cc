#include "lib/intranode/strategy.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <type_traits>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "lib/base/status_macros.h"

namespace addend {
namespace {

constexpr std::pair<Strategy, const char*> kNames[] = {
    {Strategy::kCopy, "copy"},
    {Strategy::kCpuAssisted, "cpu-assisted"},
    {Strategy::kReduceBroadcast, "reduce-broadcast"},
    {Strategy::kReduceScatter, "reduce-scatter"},
};

// The ranks of a node on their GPUs.
struct Node {
  Topology topology;          // reduced to these GPUs
  std::vector<uint32_t> gpu;  // of every rank

  const PcieSwitch& SwitchOf(size_t rank) const {
    return topology.switches[topology.gpus[gpu[rank]].pcie_switch];
  }
  bool SharesGpus() const { return topology.gpus.size() < gpu.size(); }
};

absl::StatusOr<Node> PlaceRanks(const Topology& topology, const std::vector<std::string>& bus_ids) {
  Node node;
  ADDEND_ASSIGN_OR_RETURN(node.topology, Restrict(topology, bus_ids));
  for (const std::string& bus_id : bus_ids) {
    ADDEND_ASSIGN_OR_RETURN(const uint32_t gpu, FindGpu(node.topology, bus_id));
    node.gpu.push_back(gpu);
  }
  return node;
}

struct Choice {
  Strategy strategy;
  std::string why;
};

Choice ChooseWithNvlink(const SwitchCount& switches) {
  if (switches.with_nic > 0 && switches.without_nic > 0) {
    return {Strategy::kReduceBroadcast,
            "Some GPUs share their link to the CPU with a NIC and others do not: all reduce over "
            "NVLink to GPUs that do not, which leaves the shared links to the NICs."};
  }
  return {Strategy::kReduceScatter,
          "All links to the CPU are alike: the GPUs reduce-scatter over NVLink, and each copies "
          "its part, which loads all links equally."};
}

// Without NVLink a reduction to a root would use the very links that it is to spare. So the paper's
// first principle decides (no copies from GPU to GPU across switches), also where its rule 1, taken
// literally, asks for reduce and broadcast (S_n > 0 and S_g > 0).
Choice ChooseWithoutNvlink(const Topology& topology) {
  if (topology.HidesSwitches()) {
    return {Strategy::kCopy,
            "This machine hides its PCIe switches, as virtual machines do: which GPUs share one is "
            "not known, so each copies all it has. Where you know better, --intranode overrides."};
  }
  return {Strategy::kCpuAssisted,
          "Copies from GPU to GPU across PCIe switches are slow: the GPUs below one switch "
          "reduce-scatter, and the host sums what the switches bring."};
}

Choice Choose(const Node& node) {
  if (node.gpu.size() < 2) {
    return {Strategy::kCopy, "With one rank there is nobody to aggregate with in the node."};
  }
  if (node.SharesGpus()) {
    return {Strategy::kCopy, "Several ranks share a GPU: each copies all it has, the host sums."};
  }
  return node.topology.NvlinkJoinsAll() ? ChooseWithNvlink(CountSwitches(node.topology))
                                        : ChooseWithoutNvlink(node.topology);
}

// A group for each value of `key`.
template <typename Key>
std::vector<std::vector<uint32_t>> GroupBy(const Node& node, Key key) {
  std::vector<std::vector<uint32_t>> groups;
  std::map<std::decay_t<decltype(key(0))>, size_t> place;
  for (uint32_t rank = 0; rank < node.gpu.size(); ++rank) {
    const auto [found, is_new] = place.try_emplace(key(rank), groups.size());
    if (is_new) groups.emplace_back();
    groups[found->second].push_back(rank);
  }
  return groups;
}

std::vector<std::vector<uint32_t>> GroupsOf(Strategy strategy, const Node& node) {
  switch (strategy) {
    case Strategy::kCopy:
      return GroupBy(node, [](uint32_t rank) { return rank; });
    case Strategy::kCpuAssisted:
      // Where switches are hidden, the NUMA node is still known.
      if (node.topology.HidesSwitches()) {
        return GroupBy(node, [&](uint32_t rank) { return node.SwitchOf(rank).numa_node; });
      }
      return GroupBy(node, [&](uint32_t rank) { return node.SwitchOf(rank).bus_id; });
    case Strategy::kReduceBroadcast:
    case Strategy::kReduceScatter:
      return GroupBy(node, [](uint32_t) { return 0; });
  }
  return {};
}

// The ranks whose switch has no NIC; all ranks if every switch has a NIC.
std::vector<uint32_t> RootsOf(const Node& node) {
  std::vector<uint32_t> roots;
  for (uint32_t rank = 0; rank < node.gpu.size(); ++rank) {
    if (node.SwitchOf(rank).nics.empty()) roots.push_back(rank);
  }
  if (roots.empty()) {
    roots.resize(node.gpu.size());
    std::iota(roots.begin(), roots.end(), 0);
  }
  return roots;
}

std::vector<std::string> Findings(const Node& node) {
  const SwitchCount switches = CountSwitches(node.topology);
  std::vector<std::string> why = {
      absl::StrFormat("PCIe switches with GPUs and a NIC: S_n = %d; with GPUs alone: S_g = %d.",
                      switches.with_nic, switches.without_nic)};
  if (node.topology.gpus.size() > 1) {
    why.push_back(node.topology.NvlinkJoinsAll() ? "NVLink joins all GPUs."
                                                 : "NVLink does not join all GPUs.");
  }
  return why;
}

}  // namespace

const char* NameOf(Strategy strategy) {
  for (const auto& [value, name] : kNames) {
    if (value == strategy) return name;
  }
  return "";
}

absl::StatusOr<Strategy> ParseStrategy(std::string_view name) {
  for (const auto& [value, its_name] : kNames) {
    if (its_name == name) return value;
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "'%s' is not a strategy: use copy, cpu-assisted, reduce-broadcast or reduce-scatter", name));
}

SwitchCount CountSwitches(const Topology& topology) {
  SwitchCount count;
  for (const PcieSwitch& s : topology.switches) {
    if (!s.gpus.empty()) ++(s.nics.empty() ? count.without_nic : count.with_nic);
  }
  return count;
}

absl::StatusOr<Layout> ChooseLayout(const Topology& topology,
                                    const std::vector<std::string>& bus_id_of_local_rank,
                                    std::optional<Strategy> demanded) {
  ADDEND_ASSIGN_OR_RETURN(const Node node, PlaceRanks(topology, bus_id_of_local_rank));
  Layout layout;
  layout.why = Findings(node);
  Choice choice = Choose(node);
  if (demanded && *demanded != choice.strategy) {
    if (node.SharesGpus()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "--intranode=%s needs a GPU of its own for every local rank, but %d ranks share %d "
          "GPUs: only copy works there",
          NameOf(*demanded), node.gpu.size(), node.topology.gpus.size()));
    }
    choice = {*demanded, absl::StrFormat("%s was demanded; the rule would choose %s.",
                                         NameOf(*demanded), NameOf(choice.strategy))};
  }
  layout.strategy = choice.strategy;
  layout.why.push_back(std::move(choice.why));
  layout.groups = GroupsOf(layout.strategy, node);
  if (layout.strategy == Strategy::kReduceBroadcast) layout.roots = RootsOf(node);
  layout.scatter = layout.strategy != Strategy::kReduceBroadcast &&
                   std::any_of(layout.groups.begin(), layout.groups.end(),
                               [](const auto& group) { return group.size() > 1; });
  return layout;
}

absl::StatusOr<uint32_t> ChooseDirectRank(const Topology& topology,
                                          const std::vector<std::string>& bus_id_of_local_rank,
                                          const std::vector<std::string>& nics,
                                          const Layout& layout) {
  if (nics.empty()) return absl::FailedPreconditionError("there is no RDMA device to read GPUs");
  const bool in_parts =
      layout.groups.size() != 1 || (layout.scatter && layout.groups[0].size() > 1);
  if (in_parts) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "with the strategy %s no GPU has all that the node contributes; with one GPU, or with "
        "--intranode=reduce-broadcast, one has",
        NameOf(layout.strategy)));
  }
  ADDEND_ASSIGN_OR_RETURN(const Node node, PlaceRanks(topology, bus_id_of_local_rank));
  // True if the rank's switch has all NICs, because any of them may be chosen for a payload.
  const auto has_all = [&](const PcieSwitch& pcie_switch) {
    return std::all_of(nics.begin(), nics.end(), [&](const std::string& used) {
      const std::string device = used.substr(0, used.find(':'));
      return std::any_of(pcie_switch.nics.begin(), pcie_switch.nics.end(), [&](uint32_t nic) {
        const std::vector<std::string>& names = node.topology.nics[nic].names;
        return std::count(names.begin(), names.end(), device) > 0;
      });
    });
  };
  for (uint32_t rank = 0; rank < node.gpu.size(); ++rank) {
    if (has_all(node.SwitchOf(rank))) return rank;
  }
  return absl::FailedPreconditionError(absl::StrFormat(
      "no GPU of this node's ranks shares a PCIe switch with all RDMA devices in use (%s): name "
      "those beside one with --rdma-device",
      absl::StrJoin(nics, ", ")));
}

}  // namespace addend
