#include "services/scheduler/network_view.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "lib/network/order.h"
#include "lib/network/slow_links.h"

namespace addend {
namespace {

constexpr size_t kSlowMost = 100;
constexpr size_t kMembersMost = 8;

// Every host was given a place such as "zone/row/rack". Levels that divide nothing, or name each
// host, are left out.
HostGroups ToldGroups(const NetworkFacts& facts) {
  std::vector<std::vector<std::string>> places;
  size_t depth = kGroupLevelsMost;
  for (const NetworkFacts::Host& host : facts.hosts) {
    places.push_back(absl::StrSplit(host.place, '/', absl::SkipEmpty()));
    depth = std::min(depth, places.back().size());
  }
  HostGroups groups;
  for (size_t level = 1; level <= depth; ++level) {
    std::map<std::vector<std::string>, uint32_t> numbers;
    std::vector<uint32_t> of_host;
    for (const std::vector<std::string>& place : places) {
      const std::vector<std::string> prefix(place.begin(),
                                            place.begin() + static_cast<ptrdiff_t>(level));
      const auto number = static_cast<uint32_t>(numbers.size());
      of_host.push_back(numbers.try_emplace(prefix, number).first->second);
    }
    if (numbers.size() > 1 && numbers.size() < places.size()) {
      groups.levels.push_back(std::move(of_host));
    }
  }
  return groups;
}

double LeastOf(const NetworkFacts::Pair& pair) {
  if (pair.first_s == 0 || pair.second_s == 0) return std::max(pair.first_s, pair.second_s);
  return std::min(pair.first_s, pair.second_s);
}

double MiddleOf(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void FillKinds(const NetworkFacts& facts, const HostGroups& groups, v1::GetNetworkResponse* view) {
  std::vector<std::vector<double>> latencies(groups.levels.size() + 1);
  std::vector<std::vector<double>> bandwidths(latencies.size());
  for (const NetworkFacts::Pair& pair : facts.pairs) {
    const uint32_t shared = groups.Shared(pair.a, pair.b);
    latencies[shared].push_back(LeastOf(pair));
    if (pair.bandwidth_bps > 0) bandwidths[shared].push_back(pair.bandwidth_bps);
  }
  for (size_t i = 0; i < latencies.size(); ++i) {
    v1::NetworkKind* const kind = view->add_kinds();
    kind->set_pairs(latencies[i].size());
    kind->set_latency_s(MiddleOf(std::move(latencies[i])));
    kind->set_bandwidth_bps(MiddleOf(std::move(bandwidths[i])));
  }
}

void FillSlow(const NetworkFacts& facts, const HostGroups& groups, v1::GetNetworkResponse* view) {
  std::vector<LinkFacts> links;
  for (const NetworkFacts::Pair& pair : facts.pairs) {
    links.push_back({pair.a, pair.b, LeastOf(pair), pair.bandwidth_bps});
  }
  std::vector<SlowLink> slow = FindSlowLinks(groups, links);
  slow.resize(std::min(slow.size(), kSlowMost));
  for (const SlowLink& link : slow) {
    v1::SlowNetworkLink* const one = view->add_slow();
    one->set_from(facts.hosts[link.a].address);
    if (link.b) one->set_to(facts.hosts[*link.b].address);
    one->set_latency_s(link.measured.latency_s);
    one->set_bandwidth_bps(link.measured.bandwidth_bps);
    one->set_typical_latency_s(link.typical.latency_s);
    one->set_typical_bandwidth_bps(link.typical.bandwidth_bps);
  }
}

}  // namespace

FoundGroups GroupsOf(const NetworkFacts& facts) {
  const auto told = [](const NetworkFacts::Host& host) { return !host.place.empty(); };
  if (!facts.hosts.empty() && std::all_of(facts.hosts.begin(), facts.hosts.end(), told)) {
    return {v1::GetNetworkResponse::TOLD, ToldGroups(facts)};
  }
  std::vector<PairLatency> pairs;
  for (const NetworkFacts::Pair& pair : facts.pairs) {
    pairs.push_back({pair.a, pair.b, pair.first_s, pair.second_s});
  }
  if (pairs.empty()) return {};
  return {v1::GetNetworkResponse::MEASURED,
          FindGroups(static_cast<uint32_t>(facts.hosts.size()), pairs)};
}

v1::GetNetworkResponse ViewOf(const NetworkFacts& facts) {
  const FoundGroups found = GroupsOf(facts);
  v1::GetNetworkResponse view;
  view.set_source(found.source);
  view.set_levels(static_cast<uint32_t>(found.groups.levels.size()));
  for (const uint32_t i : NeighbourOrder(static_cast<uint32_t>(facts.hosts.size()), found.groups)) {
    const NetworkFacts::Host& from = facts.hosts[i];
    v1::NetworkHost* const host = view.add_hosts();
    host->set_address(from.address);
    host->set_hostname(from.hostname);
    host->set_place(from.place);
    for (const auto& level : found.groups.levels) host->add_groups(level[i]);
    for (size_t m = 0; m < std::min(from.members.size(), kMembersMost); ++m) {
      host->add_members(from.members[m]);
    }
  }
  view.set_pairs(facts.pairs.size());
  FillKinds(facts, found.groups, &view);
  FillSlow(facts, found.groups, &view);
  return view;
}

}  // namespace addend
