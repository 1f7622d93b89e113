#include "services/scheduler/measured_racks.h"

#include <map>
#include <set>
#include <string>

#include "services/scheduler/network_view.h"

namespace addend {
namespace {

// Twice in each half of the measurements: the halves confirm each other's groups.
constexpr uint32_t kTimesForRacks = 4;

}  // namespace

std::vector<uint32_t> MeasuredRacks(const Job& job, const NetworkMap& map) {
  if (!map.measures() || job.nodes.size() < job.settings.num_nodes()) return {};
  std::vector<std::string> of_node;
  for (const auto& [rank, node] : job.nodes) {
    of_node.push_back(NumericHost(node.info.control_address()));
    if (of_node.back().empty()) return {};
  }
  const std::set<std::string> hosts(of_node.begin(), of_node.end());
  if (!map.AllMeasured(hosts, kTimesForRacks)) return {};
  const HostGroups groups = GroupsOf(map.FactsOf(hosts)).groups;
  if (groups.levels.empty()) return {};
  std::map<std::string, uint32_t> rack_of;
  for (const std::string& host : hosts) {
    rack_of.emplace(host, groups.levels.back()[rack_of.size()]);
  }
  std::vector<uint32_t> racks;
  for (const std::string& host : of_node) racks.push_back(rack_of.at(host));
  return racks;
}

}  // namespace addend
