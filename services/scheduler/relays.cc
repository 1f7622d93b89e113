// The cut of groups of machines into spans of the tree, and the relays of a partition.
#include "services/scheduler/relays.h"

#include <algorithm>
#include <map>
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

// nullopt: the owner is among the servers of the unit, or none of them is left for it.
std::optional<PartitionPlace> RelayIn(const v1::RelayUnit& unit, uint32_t partition) {
  const auto index = static_cast<int>(partition);
  if (index >= unit.turns_size() || unit.turns(index) == 0) return std::nullopt;
  const uint32_t turn = unit.turns(index) - 1;
  const auto servers = static_cast<uint32_t>(unit.servers_size());
  return PartitionPlace{ServerId(unit.servers(static_cast<int>(turn % servers))), turn / servers};
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

// The index of the server with the fewest bytes, but for those that sum the partition for another
// unit: a server does so for one only. nullopt: no server is left.
std::optional<uint32_t> LeastBusy(const std::vector<const Server*>& servers,
                                  const std::set<ServerId>& others,
                                  std::map<ServerId, uint64_t>* bytes) {
  std::optional<uint32_t> least;
  for (uint32_t i = 0; i < servers.size(); ++i) {
    const ServerId id = servers[i]->id;
    if (others.contains(id)) continue;
    if (!least.has_value() || (*bytes)[id] < (*bytes)[servers[*least]->id]) least = i;
  }
  return least;
}

// By the places that all nodes were told, or by the measured racks, which have no places. Empty:
// unknown.
std::vector<uint32_t> GroupsOfNodes(const Job& job, std::map<std::string, uint32_t>* places) {
  std::vector<uint32_t> groups;
  for (const auto& [rank, node] : job.nodes) {
    if (node.info.place().empty()) {
      places->clear();
      return job.current.relaying.racks;
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
  RelayChoice choice;
  std::set<uint32_t> cut;  // groups whose nodes are not the last of eight
  for (size_t i = 0; i < units.size(); ++i) {
    const RelayUnit& unit = units[i];
    choice.groups.push_back({.unit = unit, .servers = servers[unit.group]});
    if (i + 1 < units.size() && GoesOn(units[i + 1].nodes)) cut.insert(unit.group);
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
  v1::RelayPlan relays;
  std::vector<std::set<ServerId>> taken(static_cast<size_t>(plan.servers_size()));
  for (const RelayChoice::Group& group : choice.groups) {
    v1::RelayUnit* const unit = relays.add_units();
    unit->set_first(group.unit.nodes.first);
    unit->set_count(group.unit.nodes.count);
    for (const Server* server : group.servers) unit->add_servers(server->id.value());
    std::map<ServerId, uint32_t> given;
    for (int i = 0; i < plan.servers_size(); ++i) {
      std::set<ServerId>& others = taken[static_cast<size_t>(i)];
      const bool owns =
          std::any_of(group.servers.begin(), group.servers.end(),
                      [&](const Server* server) { return server->id.value() == plan.servers(i); });
      const auto index = owns ? std::nullopt : LeastBusy(group.servers, others, &bytes);
      if (!index.has_value()) {
        unit->add_turns(0);
        continue;
      }
      const Server& relay = *group.servers[*index];
      const uint32_t shard = given[relay.id]++ % std::max<uint32_t>(1, relay.info.shards());
      unit->add_turns(1 + *index + shard * static_cast<uint32_t>(group.servers.size()));
      bytes[relay.id] += PayloadBytesOf(plan, static_cast<uint32_t>(i));
      others.insert(relay.id);
    }
  }
  return relays;
}

bool IsPossible(const v1::RelayPlan& relays, int partitions, uint32_t nodes) {
  uint64_t covered = 0;  // nodes
  for (const v1::RelayUnit& unit : relays.units()) {
    const uint64_t turns = uint64_t{static_cast<uint32_t>(unit.servers_size())} * kMaxShards;
    if (unit.first() != covered || unit.count() == 0 || unit.turns_size() != partitions ||
        std::any_of(unit.turns().begin(), unit.turns().end(),
                    [turns](uint32_t turn) { return turn > turns; })) {
      return false;
    }
    covered += unit.count();
  }
  return covered == nodes && static_cast<size_t>(relays.units_size()) <= kMostRelayGroups;
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

std::vector<PlannedRelay> RelaysBy(ServerId server, const std::vector<int>& units,
                                   const v1::TensorPlan& plan, uint32_t partition, uint32_t nodes) {
  std::vector<PlannedRelay> relays;
  if (!IsRelayed(plan, partition)) return relays;
  int done = 0;  // up to this unit
  for (const int unit : units) {
    const auto place = RelayIn(plan.relays().units(unit), partition);
    if (unit < done || !place.has_value() || place->server != server) continue;
    const Chain chain = ChainOf(plan.relays(), unit);
    AddChain(plan, partition, nodes, chain, &relays);
    done = chain.end;
  }
  std::erase_if(relays, [server](const auto& relay) { return relay.relay.server != server; });
  return relays;
}

std::vector<int> UnitsWith(ServerId server, const v1::RelayPlan& plan) {
  std::vector<int> units;
  for (int i = 0; i < plan.units_size(); ++i) {
    const auto& servers = plan.units(i).servers();
    if (std::find(servers.begin(), servers.end(), server.value()) != servers.end()) {
      units.push_back(i);
    }
  }
  return units;
}

int UnitOf(NodeId node, const v1::RelayPlan& plan) {
  const auto after = std::upper_bound(
      plan.units().begin(), plan.units().end(), node.value(),
      [](uint32_t rank, const v1::RelayUnit& unit) { return rank < unit.first(); });
  const auto unit = static_cast<int>(after - plan.units().begin()) - 1;
  return unit >= 0 && node.value() < SpanOf(plan.units(unit)).end() ? unit : -1;
}

bool RelaysFor(ServerId server, const Job& job) {
  return std::any_of(job.current.tensors.begin(), job.current.tensors.end(),
                     [server](const auto& entry) {
                       const auto owned = entry.second.owned.find(server);
                       return owned != entry.second.owned.end() && !owned->second.relayed.empty();
                     });
}

v1::TensorPlan SeenThroughRelays(const v1::TensorPlan& plan, int unit, uint32_t nodes) {
  v1::TensorPlan seen = plan;
  seen.clear_relays();
  if (unit < 0) return seen;
  const Chain chain = ChainOf(plan.relays(), unit);
  const SumSpan span = SpanOf(plan.relays().units(unit));
  for (int i = 0; i < plan.servers_size(); ++i) {
    const auto partition = static_cast<uint32_t>(i);
    if (!IsRelayed(plan, partition)) continue;
    std::vector<PlannedRelay> relays;
    AddChain(plan, partition, nodes, chain, &relays);
    for (const PlannedRelay& relay : relays) {
      if (relay.nodes != span) continue;
      seen.set_servers(i, relay.relay.server.value());
      seen.set_shards(i, relay.relay.shard);
    }
  }
  return seen;
}

}  // namespace addend
