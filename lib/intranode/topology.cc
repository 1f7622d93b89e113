#include "lib/intranode/topology.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"

namespace addend {
bool Topology::NvlinkJoinsAll() const {
  // Sets of GPUs that reach each other, each named by a member.
  std::vector<uint32_t> set(gpus.size());
  std::iota(set.begin(), set.end(), 0);
  for (const auto& [a, b] : nvlinks) {
    const uint32_t from = set[b], to = set[a];
    std::replace(set.begin(), set.end(), from, to);
  }
  return gpus.size() > 1 &&
         std::all_of(set.begin(), set.end(), [&](uint32_t s) { return s == set.front(); });
}

bool Topology::HidesSwitches() const {
  const auto hidden = std::count_if(switches.begin(), switches.end(), [](const PcieSwitch& s) {
    return s.on_host_bridge && !s.gpus.empty();
  });
  return hidden > 1;
}

std::string NormalBusId(std::string_view text) {
  std::string id(text);
  absl::AsciiStrToLower(&id);
  if (std::count(id.begin(), id.end(), ':') == 1) id = "0000:" + id;
  const size_t domain_digits = std::min(id.find(':'), id.size());
  size_t zeros = 0;
  while (zeros + 4 < domain_digits && id[zeros] == '0') ++zeros;
  return id.substr(zeros);
}

absl::StatusOr<uint32_t> FindGpu(const Topology& topology, std::string_view bus_id) {
  const std::string normal = NormalBusId(bus_id);
  for (uint32_t gpu = 0; gpu < topology.gpus.size(); ++gpu) {
    if (topology.gpus[gpu].bus_id == normal) return gpu;
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("the machine has no NVIDIA GPU with the PCI bus id '%s'", bus_id));
}

absl::StatusOr<Topology> Restrict(const Topology& topology,
                                  const std::vector<std::string>& bus_ids) {
  std::vector<bool> used(topology.gpus.size(), false);
  for (const std::string& bus_id : bus_ids) {
    ADDEND_ASSIGN_OR_RETURN(const uint32_t gpu, FindGpu(topology, bus_id));
    used[gpu] = true;
  }
  Topology kept;
  kept.nics = topology.nics;
  kept.notes = topology.notes;
  std::vector<uint32_t> number(used.size());  // by old number: the new number of each used GPU
  for (size_t gpu = 0; gpu < used.size(); ++gpu) {
    if (!used[gpu]) continue;
    number[gpu] = static_cast<uint32_t>(kept.gpus.size());
    kept.gpus.push_back(topology.gpus[gpu]);
  }
  for (const PcieSwitch& old : topology.switches) {
    PcieSwitch s = old;
    s.gpus.clear();
    for (const uint32_t gpu : old.gpus) {
      if (used[gpu]) s.gpus.push_back(number[gpu]);
    }
    if (s.gpus.empty() && s.nics.empty()) continue;
    const auto place = static_cast<uint32_t>(kept.switches.size());
    for (const uint32_t gpu : s.gpus) kept.gpus[gpu].pcie_switch = place;
    for (const uint32_t nic : s.nics) kept.nics[nic].pcie_switch = place;
    kept.switches.push_back(std::move(s));
  }
  for (const auto& [a, b] : topology.nvlinks) {
    if (used[a] && used[b]) kept.nvlinks.emplace_back(number[a], number[b]);
  }
  return kept;
}

}  // namespace addend
