#include "tools/addendctl/topology_command.h"

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "lib/base/status_macros.h"
#include "lib/base/units.h"
#include "lib/intranode/cost_model.h"
#include "lib/intranode/strategy.h"
#include "lib/intranode/topology.h"
#include "tools/addendctl/table.h"

namespace addend {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kDefaultBytes = 1'000'000'000;
constexpr Strategy kStrategies[] = {Strategy::kCopy, Strategy::kCpuAssisted,
                                    Strategy::kReduceBroadcast, Strategy::kReduceScatter};

// What the cost model says of one strategy.
struct Cost {
  Strategy strategy;
  std::vector<SwitchLoad> loads;  // of every switch of the topology
};

// What the cost model says of the machine's GPUs without NVLink (Eq. 8 and 9).
struct PcieCost {
  PcieTree tree;
  double best_x = 0;
  // J(1), J(0), J(x*) and J_ar.
  double copy_s = 0;
  double cpu_assisted_s = 0;
  double best_s = 0;
  double ring_s = 0;
};

struct Findings {
  uint64_t bytes = 0;
  Topology topology;
  std::optional<Layout> layout;  // nullopt: there is no GPU
  std::vector<Cost> costs;       // of all strategies, if requested
  std::optional<PcieCost> pcie;  // if requested, and several GPUs have no NVLink
};

std::vector<std::string> BusIds(const Topology& topology) {
  std::vector<std::string> ids;
  for (const Gpu& gpu : topology.gpus) ids.push_back(gpu.bus_id);
  return ids;
}

PcieCost CostOfPcie(const Topology& topology, uint64_t bytes) {
  PcieCost cost = {.tree = PcieTreeOf(topology)};
  cost.best_x = BestCopyPart(cost.tree);
  cost.copy_s = CopySeconds(cost.tree, bytes, 1);
  cost.cpu_assisted_s = CopySeconds(cost.tree, bytes, 0);
  cost.best_s = CopySeconds(cost.tree, bytes, cost.best_x);
  cost.ring_s = RingSeconds(cost.tree, bytes, CrossSwitchBps(cost.tree));
  return cost;
}

absl::Status AddCosts(Findings* found) {
  Topology& topology = found->topology;
  if (topology.HidesSwitches()) {
    topology.notes.emplace_back("what strategies cost is not known where switches are hidden");
    return absl::OkStatus();
  }
  const std::vector<std::string> ranks = BusIds(topology);
  for (const Strategy strategy : kStrategies) {
    ADDEND_ASSIGN_OR_RETURN(const Layout layout, ChooseLayout(topology, ranks, strategy));
    ADDEND_ASSIGN_OR_RETURN(auto loads, LoadSwitches(topology, ranks, layout));
    found->costs.push_back({strategy, std::move(loads)});
  }
  if (topology.gpus.size() > 1 && !topology.NvlinkJoinsAll()) {
    found->pcie = CostOfPcie(topology, found->bytes);
  }
  return absl::OkStatus();
}

absl::StatusOr<Findings> Find(const TopologyQuestion& question) {
  std::optional<Strategy> demanded;
  if (!question.strategy.empty()) {
    ADDEND_ASSIGN_OR_RETURN(demanded, ParseStrategy(question.strategy));
  }
  Findings found;
  found.bytes = question.bytes != 0 ? question.bytes : kDefaultBytes;
  ADDEND_ASSIGN_OR_RETURN(found.topology, ReadTopology(question.file));
  if (found.topology.gpus.empty()) return found;
  ADDEND_ASSIGN_OR_RETURN(found.layout,
                          ChooseLayout(found.topology, BusIds(found.topology), demanded));
  if (question.explain) ADDEND_RETURN_IF_ERROR(AddCosts(&found));
  return found;
}

std::string At(double bps) {
  return bps > 0 ? absl::StrFormat(", PCIe at %s", FormatBandwidth(bps)) : "";
}

std::string DevicesText(const Topology& topology, const PcieSwitch& s) {
  std::string text;
  for (const uint32_t i : s.gpus) {
    const Gpu& gpu = topology.gpus[i];
    text += absl::StrFormat("    GPU %d  %s%s%s\n", i, gpu.bus_id,
                            gpu.name.empty() ? "" : "  " + gpu.name, At(gpu.link_bps));
  }
  for (const uint32_t i : s.nics) {
    const Nic& nic = topology.nics[i];
    text += absl::StrFormat("    NIC %d  %s  %s%s\n", i, nic.bus_id, absl::StrJoin(nic.names, ", "),
                            At(nic.link_bps));
  }
  return text;
}

std::string TreeText(const Topology& topology) {
  std::string text;
  const PcieSwitch* last = nullptr;
  for (const PcieSwitch& s : topology.switches) {
    const bool new_node = last == nullptr || s.numa_node != last->numa_node;
    if (new_node) {
      text += s.numa_node ? absl::StrFormat("NUMA node %d\n", *s.numa_node) : "No NUMA node\n";
    }
    if (!s.on_host_bridge) {
      text += absl::StrFormat("  PCIe switch %s%s\n", s.bus_id, At(s.link_bps));
    } else if (new_node || !last->on_host_bridge) {
      text += "  On the host bridge\n";
    }
    text += DevicesText(topology, s);
    last = &s;
  }
  return text;
}

const char* NvlinkText(const Topology& topology) {
  if (topology.NvlinkJoinsAll()) return "joins all GPUs";
  return topology.nvlinks.empty() ? "none" : "joins some GPUs, but not all";
}

std::string RanksText(const std::vector<uint32_t>& ranks) {
  return absl::StrFormat("{%s}", absl::StrJoin(ranks, ", "));
}

std::string LayoutText(const Layout& layout) {
  std::string text = absl::StrFormat("Strategy: %s\n", NameOf(layout.strategy));
  std::vector<std::string> groups;
  for (const auto& group : layout.groups) groups.push_back(RanksText(group));
  text += absl::StrFormat("  groups of ranks: %s\n", absl::StrJoin(groups, " "));
  if (!layout.roots.empty()) {
    text += absl::StrFormat("  roots, in turn: %s\n", RanksText(layout.roots));
  }
  for (const std::string& why : layout.why) text += absl::StrFormat("  %s\n", why);
  return text;
}

std::string PcieText(const PcieCost& cost, uint64_t bytes) {
  Table table({"OVER PCIe ALONE", "GPU TO SWITCH", "SWITCH TO CPU", "TIME"});
  const auto add = [&](const std::string& name, double x, double seconds) {
    const LinkTraffic traffic = TrafficOf(cost.tree, x);
    table.Add({name, absl::StrFormat("%.3g M", traffic.gpu_switch),
               absl::StrFormat("%.3g M", traffic.switch_cpu), FormatSeconds(seconds)});
  };
  add("copy (x = 1)", 1, cost.copy_s);
  add("cpu-assisted (x = 0)", 0, cost.cpu_assisted_s);
  add(absl::StrFormat("the best of both (x = %.3g)", cost.best_x), cost.best_x, cost.best_s);
  table.Add({"ring all-reduce", "", "", FormatSeconds(cost.ring_s)});
  return absl::StrFormat(
      "\nM = %s on every GPU; p = %d switches with n = %d GPUs; GPU to switch %s, switch to CPU "
      "%s,\n"
      "from GPU to GPU across switches %s (80/105 of it, as the paper measured)\n%s",
      FormatSize(static_cast<double>(bytes)), cost.tree.switches, cost.tree.gpus_per_switch,
      FormatBandwidth(cost.tree.gpu_switch_bps), FormatBandwidth(cost.tree.switch_cpu_bps),
      FormatBandwidth(CrossSwitchBps(cost.tree)), table.ToString());
}

std::string LoadText(const SwitchLoad& load) {
  std::string text = absl::StrFormat("%.3g M", load.gpus);
  if (load.nics > 0) text += absl::StrFormat(" (NIC: %.0f %%)", load.NicShare() * 100);
  return text;
}

std::string CostsText(const Topology& topology, const std::vector<Cost>& costs) {
  std::vector<std::string> header = {"LINK TO THE CPU OF"};
  for (const Cost& cost : costs) header.emplace_back(NameOf(cost.strategy));
  Table table(header);
  for (size_t i = 0; i < topology.switches.size(); ++i) {
    if (topology.switches[i].gpus.empty()) continue;
    std::vector<std::string> row = {topology.switches[i].bus_id};
    for (const Cost& cost : costs) row.push_back(LoadText(cost.loads[i]));
    table.Add(std::move(row));
  }
  return absl::StrFormat(
      "\nWhat the GPUs put on each link, each direction (and how much of it a NIC there gets "
      "meanwhile)\n%s",
      table.ToString());
}

std::string ToText(const Findings& found) {
  const Topology& topology = found.topology;
  if (!found.layout) {
    return "There is no NVIDIA GPU: ranks sum in host memory, and there is no strategy to "
           "choose.\n";
  }
  std::string text = TreeText(topology);
  if (topology.gpus.size() > 1) {
    text += absl::StrFormat("NVLink: %s\n", NvlinkText(topology));
  }
  for (const std::string& note : topology.notes) text += absl::StrFormat("Note: %s.\n", note);
  text += "\n";
  text += LayoutText(*found.layout);
  if (found.pcie) text += PcieText(*found.pcie, found.bytes);
  if (!found.costs.empty()) text += CostsText(topology, found.costs);
  return text;
}

Json KnownBps(double bps) { return bps > 0 ? Json(bps) : Json(nullptr); }

Json TreeJson(const Topology& topology) {
  Json json = {{"switches", Json::array()}, {"gpus", Json::array()}, {"nics", Json::array()}};
  for (const PcieSwitch& s : topology.switches) {
    json["switches"].push_back({{"bus_id", s.bus_id},
                                {"on_host_bridge", s.on_host_bridge},
                                {"numa_node", s.numa_node ? Json(*s.numa_node) : Json(nullptr)},
                                {"link_bps", KnownBps(s.link_bps)},
                                {"gpus", s.gpus},
                                {"nics", s.nics}});
  }
  for (const Gpu& gpu : topology.gpus) {
    json["gpus"].push_back({{"bus_id", gpu.bus_id},
                            {"name", gpu.name},
                            {"link_bps", KnownBps(gpu.link_bps)},
                            {"switch", gpu.pcie_switch}});
  }
  for (const Nic& nic : topology.nics) {
    json["nics"].push_back({{"bus_id", nic.bus_id},
                            {"names", nic.names},
                            {"link_bps", KnownBps(nic.link_bps)},
                            {"switch", nic.pcie_switch}});
  }
  json["nvlinks"] = topology.nvlinks;
  json["nvlink_joins_all"] = topology.NvlinkJoinsAll();
  json["switches_hidden"] = topology.HidesSwitches();
  json["notes"] = topology.notes;
  return json;
}

Json CostsJson(const Findings& found) {
  Json json = {{"bytes", found.bytes}, {"pcie", nullptr}, {"loads", Json::object()}};
  if (found.pcie) {
    const PcieCost& cost = *found.pcie;
    json["pcie"] = {{"switches", cost.tree.switches},
                    {"gpus_per_switch", cost.tree.gpus_per_switch},
                    {"gpu_switch_bps", cost.tree.gpu_switch_bps},
                    {"switch_cpu_bps", cost.tree.switch_cpu_bps},
                    {"best_x", cost.best_x},
                    {"best_s", cost.best_s},
                    {"cpu_assisted_s", cost.cpu_assisted_s},
                    {"copy_s", cost.copy_s},
                    {"ring_s", cost.ring_s}};
  }
  for (const Cost& cost : found.costs) {
    Json& loads = json["loads"][NameOf(cost.strategy)] = Json::array();
    for (const SwitchLoad& load : cost.loads) {
      loads.push_back({{"gpus", load.gpus},
                       {"nics", load.nics},
                       {"nic_share", load.nics > 0 ? Json(load.NicShare()) : Json(nullptr)}});
    }
  }
  return json;
}

std::string ToJson(const Findings& found, bool explain) {
  Json json = TreeJson(found.topology);
  json["strategy"] = nullptr;
  if (found.layout) {
    const SwitchCount count = CountSwitches(found.topology);
    json["strategy"] = NameOf(found.layout->strategy);
    json["s_n"] = count.with_nic;
    json["s_g"] = count.without_nic;
    json["groups"] = found.layout->groups;
    json["scatter"] = found.layout->scatter;
    json["roots"] = found.layout->roots;
    json["why"] = found.layout->why;
    if (explain) json["costs"] = CostsJson(found);
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

absl::StatusOr<std::string> AnswerTopology(const TopologyQuestion& question) {
  if (!question.export_file.empty()) {
    if (!question.file.empty()) {
      return absl::InvalidArgumentError(
          "--export records this machine and --topology reads another one: give one of them");
    }
    ADDEND_RETURN_IF_ERROR(ExportTopology(question.export_file));
  }
  ADDEND_ASSIGN_OR_RETURN(const Findings found, Find(question));
  return question.json ? ToJson(found, question.explain) : ToText(found);
}

}  // namespace addend
