// The cut of groups of machines into spans of the tree, and the relays of a partition.
#include "services/scheduler/relays.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "lib/member/protocols.h"
#include "lib/plan/assignment.h"
#include "lib/wire/frame.h"
#include "services/scheduler/admission.h"
#include "services/scheduler/job_servers.h"

namespace addend {
namespace {

// The longest span from `first` on whose sum the tree has, up to `end`.
SumSpan LongestSpan(uint32_t first, uint32_t end, uint32_t nodes) {
  const uint32_t in_eight = kSumRadix - first % kSumRadix;
  // The rest of eight that begin elsewhere.
  if (in_eight < kSumRadix) return {.first = first, .count = std::min(in_eight, end - first)};
  SumSpan longest{.first = first, .count = 1};
  for (uint64_t term = 1; term <= end - first; term *= kSumRadix) {
    const auto most = static_cast<uint32_t>(std::min<uint64_t>(kSumRadix, (end - first) / term));
    for (uint32_t terms = 1; terms <= most; ++terms) {
      const SumSpan span{.first = first, .count = static_cast<uint32_t>(terms * term)};
      if (EntryOf(span, nodes).has_value()) longest = span;
    }
  }
  const SumSpan rest{.first = first, .count = end - first};
  return EntryOf(rest, nodes).has_value() ? rest : longest;
}

// A unit that does not begin with the first of eight ranks goes on from the unit before it.
bool GoesOn(const SumSpan& nodes) { return nodes.first % kSumRadix != 0; }

SumSpan SpanOf(const v1::RelayUnit& unit) { return {.first = unit.first(), .count = unit.count()}; }

std::optional<PartitionPlace> RelayIn(const v1::RelayUnit& unit, uint32_t partition) {
  const auto index = static_cast<int>(partition);
  if (unit.servers(index) == 0) return std::nullopt;
  return PartitionPlace{ServerId(unit.servers(index)), unit.shards(index)};
}

// Under the first owner.
bool IsRelayed(const v1::TensorPlan& plan, uint32_t partition) {
  return plan.has_relays() &&
         (plan.versions().empty() || plan.versions(static_cast<int>(partition)) == 0);
}

// Units that go on from each other.
struct Chain {
  int begin = 0;
  int end = 0;
};
Chain ChainOf(const v1::RelayPlan& plan, int unit) {
  Chain chain{unit, unit + 1};
  while (chain.begin > 0 && GoesOn(SpanOf(plan.units(chain.begin)))) --chain.begin;
  while (chain.end < plan.units_size() && GoesOn(SpanOf(plan.units(chain.end)))) ++chain.end;
  return chain;
}

// The relays of the units of a chain, which leads to the owner. It ends before the unit of
// the owner's own nodes, and where a unit has no servers; the nodes from there on contribute to the
// owner.
void AddChain(const v1::TensorPlan& plan, uint32_t partition, uint32_t nodes, const Chain& units,
              std::vector<PlannedRelay>* relays) {
  const v1::RelayPlan& relay_plan = plan.relays();
  const PartitionPlace to{ServerId(plan.servers(static_cast<int>(partition))),
                          plan.shards(static_cast<int>(partition))};
  std::vector<PlannedRelay> chain;
  const uint32_t first = relay_plan.units(units.begin).first();
  for (int i = units.begin; i < units.end; ++i) {
    const v1::RelayUnit& unit = relay_plan.units(i);
    const std::optional<PartitionPlace> place = RelayIn(unit, partition);
    if (!place.has_value()) break;
    PlannedRelay relay;
    relay.unit = static_cast<uint32_t>(i);
    relay.nodes = SpanOf(unit);
    relay.sum = {.first = first, .count = relay.nodes.end() - first};
    relay.relay = *place;
    if (!chain.empty()) relay.before = chain.back().relay.server;
    chain.push_back(relay);
  }
  while (!chain.empty() && !EntryOf(chain.back().sum, nodes).has_value()) chain.pop_back();
  // A single contribution is no less than its sum.
  if (chain.size() == 1 && chain.front().nodes.count == 1) return;
  for (size_t i = 0; i < chain.size(); ++i) {
    chain[i].to = i + 1 < chain.size() ? chain[i + 1].relay : to;
    relays->push_back(chain[i]);
  }
}

// The servers of a group.
class GroupServers {
 public:
  GroupServers(const std::vector<const Server*>& servers, const std::map<ServerId, uint64_t>& bytes)
      : servers_(servers) {
    for (uint32_t i = 0; i < servers.size(); ++i) {
      const auto known = bytes.find(servers[i]->id);
      by_bytes_.emplace(known == bytes.end() ? 0 : known->second, i);
    }
  }
  // Gives so many bytes to the server with the fewest, but for `others`. Null: no server is left.
  const Server* Give(uint64_t bytes, const std::set<ServerId>& others) {
    const auto least = std::find_if(by_bytes_.begin(), by_bytes_.end(), [&](const auto& entry) {
      return !others.contains(servers_[entry.second]->id);
    });
    if (least == by_bytes_.end()) return nullptr;
    const auto [had, index] = *least;
    by_bytes_.erase(least);
    by_bytes_.emplace(had + bytes, index);
    return servers_[index];
  }

 private:
  const std::vector<const Server*>& servers_;
  std::set<std::pair<uint64_t, uint32_t>> by_bytes_;  // with the index in `servers_`
};

// By the places that all nodes were told, or by the measured racks, which have no places. Empty:
// unknown.
std::vector<uint32_t> GroupsOfNodes(const Job& job, std::map<std::string, uint32_t>* places) {
  std::vector<uint32_t> groups;
  for (const auto& [rank, node] : job.nodes) {
    if (node.info.place().empty()) {
      places->clear();
      return job.current.relaying.racks.value_or(std::vector<uint32_t>());
    }
    const auto next = static_cast<uint32_t>(places->size());
    groups.push_back(places->emplace(node.info.place(), next).first->second);
  }
  return groups;
}

bool TakesSums(const Server& server) {
  return FramesOf(server.info.protocols()).newest >= kPartialSumsSince;
}

}  // namespace

std::vector<RelayUnit> RelayUnitsOf(const std::vector<uint32_t>& groups) {
  std::vector<RelayUnit> units;
  const auto nodes = static_cast<uint32_t>(groups.size());
  if (std::set(groups.begin(), groups.end()).size() < 2) return units;
  for (uint32_t begin = 0; begin < nodes;) {
    uint32_t end = begin;
    while (end < nodes && groups[end] == groups[begin]) ++end;
    while (begin < end) {
      const SumSpan span = LongestSpan(begin, end, nodes);
      units.push_back({.nodes = span, .group = groups[begin]});
      begin = span.end();
    }
  }
  return units;
}

RelayChoice ChooseRelays(const Job& job, const Fleet& fleet) {
  const uint32_t nodes = job.settings.num_nodes();
  if (job.current.relaying.ended || job.nodes.size() < nodes || !job.current.gone.empty())
    return {};
  std::map<std::string, uint32_t> places;  // their groups
  const std::vector<uint32_t> groups = GroupsOfNodes(job, &places);
  const std::vector<RelayUnit> units = RelayUnitsOf(groups);
  if (units.empty() || units.size() > kMostRelayGroups) return {};
  std::map<uint32_t, std::vector<const Server*>> servers;  // by group
  for (const Server* server : EligibleServers(job, fleet)) {
    // All that exchange sums have to understand them.
    if (!TakesSums(*server)) return {};
    if (server->draining || !server->lease.Heard()) continue;
    if (server->colocated()) {
      servers[groups[server->info.colocated_node()]].push_back(server);
    } else if (const auto group = places.find(server->info.place()); group != places.end()) {
      servers[group->second].push_back(server);
    }
  }
  RelayChoice choice{.units = units, .servers = std::move(servers), .owners = {}};
  std::set<uint32_t> cut;  // groups whose nodes are not the last of eight
  for (size_t i = 0; i + 1 < units.size(); ++i) {
    if (GoesOn(units[i + 1].nodes)) cut.insert(units[i].group);
  }
  if (cut.empty() || cut.size() == std::set(groups.begin(), groups.end()).size()) return choice;
  for (const Server* server : EligibleServers(job, fleet)) {
    if (server->colocated() && cut.contains(groups[server->info.colocated_node()])) continue;
    choice.owners.push_back(server->id);
  }
  return choice;
}

void KeepOwners(const RelayChoice& choice, PlannerJob* view) {
  if (choice.owners.empty()) return;
  const std::set<ServerId> owners(choice.owners.begin(), choice.owners.end());
  std::erase_if(view->servers,
                [&owners](const PlannerServer& server) { return !owners.contains(server.id); });
}

uint64_t PayloadBytesOf(const v1::TensorPlan& plan, uint32_t partition) {
  return ElementsOfPartition(ElementsOf(plan.tensor()), plan.partition_elements(), partition) *
         SizeOf(DTypeOf(plan.tensor()));
}

v1::RelayPlan PlanRelays(const RelayChoice& choice, const v1::TensorPlan& plan, uint32_t nodes,
                         const std::map<ServerId, JobLoad>& loads) {
  std::map<ServerId, uint64_t> bytes;
  for (const auto& [server, load] : loads) bytes[server] = load.bytes + load.relayed_bytes;
  ForEachPartition(plan, nodes, [&bytes](const PlannedPartition& partition) {
    bytes[partition.server] += partition.payload_bytes;
  });
  std::map<uint32_t, GroupServers> groups;
  std::map<ServerId, uint32_t> group_of;
  for (const auto& [group, servers] : choice.servers) {
    groups.emplace(group, GroupServers(servers, bytes));
    for (const Server* server : servers) group_of[server->id] = group;
  }
  v1::RelayPlan relays;
  for (const RelayUnit& unit : choice.units) {
    v1::RelayUnit* const planned = relays.add_units();
    planned->set_first(unit.nodes.first);
    planned->set_count(unit.nodes.count);
    planned->mutable_servers()->Resize(plan.servers_size(), 0);
    planned->mutable_shards()->Resize(plan.servers_size(), 0);
  }
  // Where there are too few servers, large units have them.
  std::vector<int> order(choice.units.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&choice](int a, int b) {
    return choice.units[static_cast<size_t>(a)].nodes.count >
           choice.units[static_cast<size_t>(b)].nodes.count;
  });
  std::vector<std::set<ServerId>> taken(static_cast<size_t>(plan.servers_size()));
  std::map<ServerId, uint32_t> given;
  for (const int number : order) {
    const uint32_t group = choice.units[static_cast<size_t>(number)].group;
    const auto servers = groups.find(group);
    v1::RelayUnit* const planned = relays.mutable_units(number);
    for (int i = 0; servers != groups.end() && i < plan.servers_size(); ++i) {
      const auto owner = group_of.find(ServerId(plan.servers(i)));
      if (owner != group_of.end() && owner->second == group) continue;
      std::set<ServerId>& others = taken[static_cast<size_t>(i)];
      const uint64_t payload = PayloadBytesOf(plan, static_cast<uint32_t>(i));
      const Server* const relay = servers->second.Give(payload, others);
      if (relay == nullptr) continue;
      others.insert(relay->id);
      planned->set_servers(i, relay->id.value());
      planned->set_shards(i, given[relay->id]++ % std::max<uint32_t>(1, relay->info.shards()));
    }
  }
  return relays;
}

bool IsPossible(const v1::RelayPlan& relays, int partitions, uint32_t nodes) {
  const auto fits = [](uint32_t shard) { return shard < kMaxShards; };
  uint64_t covered = 0;  // nodes
  for (const v1::RelayUnit& unit : relays.units()) {
    if (unit.first() != covered || unit.count() == 0 || unit.servers_size() != partitions ||
        unit.shards_size() != partitions ||
        !std::all_of(unit.shards().begin(), unit.shards().end(), fits)) {
      return false;
    }
    covered += unit.count();
  }
  const auto units = static_cast<uint64_t>(relays.units_size());
  return covered == nodes && units <= kMostRelayGroups &&
         units * static_cast<uint64_t>(partitions) <= kMostRelayTurns;
}

std::vector<PlannedRelay> RelaysOf(const v1::TensorPlan& plan, uint32_t partition, uint32_t nodes) {
  std::vector<PlannedRelay> relays;
  if (!IsRelayed(plan, partition)) return relays;
  for (int begin = 0; begin < plan.relays().units_size();) {
    const Chain chain = ChainOf(plan.relays(), begin);
    AddChain(plan, partition, nodes, chain, &relays);
    begin = chain.end;
  }
  return relays;
}

std::optional<PlannedRelay> RelayOf(const v1::TensorPlan& plan, uint32_t partition, uint32_t unit,
                                    uint32_t nodes) {
  if (!IsRelayed(plan, partition)) return std::nullopt;
  std::vector<PlannedRelay> relays;
  AddChain(plan, partition, nodes, ChainOf(plan.relays(), static_cast<int>(unit)), &relays);
  const auto found = std::find_if(relays.begin(), relays.end(),
                                  [unit](const PlannedRelay& relay) { return relay.unit == unit; });
  return found == relays.end() ? std::nullopt : std::optional(*found);
}

uint32_t UnitOf(NodeId node, const v1::RelayPlan& plan) {
  const auto after = std::upper_bound(
      plan.units().begin(), plan.units().end(), node.value(),
      [](uint32_t rank, const v1::RelayUnit& unit) { return rank < unit.first(); });
  return static_cast<uint32_t>(after - plan.units().begin()) - 1;  // the first begins with node 0
}

bool RelaysFor(ServerId server, const Job& job) {
  return std::any_of(job.current.tensors.begin(), job.current.tensors.end(),
                     [server](const auto& entry) {
                       const auto owned = entry.second.owned.find(server);
                       return owned != entry.second.owned.end() && !owned->second.relayed.empty();
                     });
}

void ShowRelays(const v1::TensorPlan& plan, uint32_t unit, uint32_t nodes, v1::TensorPlan* seen) {
  for (int i = 0; i < plan.servers_size(); ++i) {
    const auto relay = RelayOf(plan, static_cast<uint32_t>(i), unit, nodes);
    if (!relay.has_value()) continue;
    seen->set_servers(i, relay->relay.server.value());
    seen->set_shards(i, relay->relay.shard);
  }
}

}  // namespace addend
