// The map of the members' measurements.
#include "services/scheduler/network_map.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "lib/base/clock.h"
#include "lib/options/host_port.h"
#include "lib/rpc/local_address.h"

namespace addend {
namespace {

constexpr size_t kTargets = 8;
// The first choices of a host follow each other quickly, for about a minute.
constexpr uint32_t kQuickChoices = 40;
constexpr absl::Duration kQuick = absl::Seconds(1);
constexpr absl::Duration kSlow = absl::Minutes(1);
constexpr absl::Duration kUnheardAfter = absl::Minutes(1);
constexpr absl::Duration kBetweenForgettings = absl::Seconds(10);
// With every choice an old minimum fades by so much, so that the map follows the network.
constexpr double kFades = 1.02;
// Every fourth choice of a host has a measurement of bandwidth, which takes a link for so long.
constexpr uint32_t kOneBandwidthIn = 4;
constexpr double kBandwidthS = 0.02;
constexpr double kBandwidthBytesLeast = 256 << 10;
constexpr double kBandwidthBytesMost = 8 << 20;
constexpr double kBandwidthBytesUnknown = 1 << 20;
// Beyond these a member's figure is a mistake.
constexpr double kLatencyMostS = 10;
constexpr double kBandwidthMostBps = 100'000'000'000'000;

uint64_t KeyOf(uint32_t a, uint32_t b) { return (uint64_t{std::min(a, b)} << 32) | std::max(a, b); }

double Faded(double least, double now) { return least == 0 ? now : std::min(now, least * kFades); }

}  // namespace

std::string NumericHost(const std::string& control_address) {
  const auto parsed = ParseHostPort(control_address);
  if (!parsed.ok() || parsed->host.empty() || IsLoopback(parsed->host)) return "";
  const std::string& host = parsed->host;
  const bool numeric = host.find(':') != std::string::npos ||
                       host.find_first_not_of("0123456789.") == std::string::npos;
  return numeric ? host : "";
}

std::string PlaceIn(const NetworkPlaces& places, const std::string& control_address,
                    const std::string& hostname, const std::string& told) {
  for (const std::string& known : {NumericHost(control_address), hostname}) {
    const auto place = places.find(known);
    if (place != places.end()) return place->second;
  }
  return told;
}

double NetworkMap::Pair::least_s() const {
  if (halves_s[0] == 0 || halves_s[1] == 0) return std::max(halves_s[0], halves_s[1]);
  return std::min(halves_s[0], halves_s[1]);
}

NetworkMap::Host* NetworkMap::Find(const std::string& control_address) {
  const auto found = index_.find(NumericHost(control_address));
  return found == index_.end() ? nullptr : &hosts_[found->second];
}

void NetworkMap::Hear(absl::Time now, const NetworkMember& member) {
  const std::string address = NumericHost(member.control_address);
  if (address.empty()) return;
  if (now >= next_forgetting_) ForgetSilent(now);
  const auto [entry, is_new] = index_.try_emplace(address, static_cast<uint32_t>(hosts_.size()));
  if (is_new) {
    hosts_.emplace_back().address = address;
    near_.emplace_back();
  }
  hosts_[entry->second].members[member.control_address] = {member, now};
}

void NetworkMap::ForgetSilent(absl::Time now) {
  next_forgetting_ = now + kBetweenForgettings;
  for (size_t i = hosts_.size(); i-- > 0;) {
    std::erase_if(hosts_[i].members,
                  [&](const auto& entry) { return now - entry.second.heard > kUnheardAfter; });
    if (hosts_[i].members.empty()) Remove(static_cast<uint32_t>(i));
  }
}

// The last host gets its index.
void NetworkMap::Remove(uint32_t host) {
  const auto last = static_cast<uint32_t>(hosts_.size() - 1);
  for (const KnownDistance& known : near_[host]) {
    pairs_.erase(KeyOf(host, known.to));
    std::erase_if(near_[known.to], [host](const KnownDistance& one) { return one.to == host; });
  }
  near_[host].clear();
  index_.erase(hosts_[host].address);
  if (host != last) {
    for (const KnownDistance& known : near_[last]) {
      auto pair = pairs_.extract(KeyOf(last, known.to));
      pair.key() = KeyOf(host, known.to);
      pairs_.insert(std::move(pair));
      for (KnownDistance& back : near_[known.to]) {
        if (back.to == last) back.to = host;
      }
    }
    near_[host] = std::move(near_[last]);
    hosts_[host] = std::move(hosts_[last]);
    index_[hosts_[host].address] = host;
  }
  hosts_.pop_back();
  near_.pop_back();
}

void NetworkMap::Take(absl::Time now, const std::string& control_address, const Probes& probes) {
  Host* const host = Find(control_address);
  if (host == nullptr) return;
  for (const v1::Probe& probe : probes) {
    const auto other = index_.find(NumericHost(probe.address()));
    const auto asked = std::find(host->asked.begin(), host->asked.end(), probe.address());
    if (asked == host->asked.end()) continue;
    host->asked.erase(asked);
    if (other == index_.end() || other->first == host->address) continue;
    const double latency_s = probe.latency_s();
    if (latency_s > 0 && latency_s < kLatencyMostS) {
      Note(now, index_.at(host->address), other->second, probe);
    }
  }
}

void NetworkMap::Note(absl::Time now, uint32_t a, uint32_t b, const v1::Probe& probe) {
  Pair& pair = pairs_[KeyOf(a, b)];
  double& half = pair.halves_s[pair.times++ % 2];
  half = Faded(half, probe.latency_s());
  Know(a, b, pair.least_s(), now);
  Know(b, a, pair.least_s(), now);
  if (probe.bandwidth_bps() > 0 && probe.bandwidth_bps() < kBandwidthMostBps) {
    pair.bandwidth_bps = std::max(probe.bandwidth_bps(), pair.bandwidth_bps / kFades);
    pair.bandwidth_at = now;
  }
}

// Sorted, the nearest first.
void NetworkMap::Know(uint32_t host, uint32_t other, double round_trip_s, absl::Time now) {
  std::vector<KnownDistance>& near = near_[host];
  std::erase_if(near, [other](const KnownDistance& one) { return one.to == other; });
  const auto place = std::upper_bound(
      near.begin(), near.end(), round_trip_s,
      [](double round_trip, const KnownDistance& one) { return round_trip < one.round_trip_s; });
  near.insert(place, {other, round_trip_s, absl::ToDoubleSeconds(now - absl::UnixEpoch())});
}

void NetworkMap::Choose(absl::Time now, const std::string& control_address, Targets* targets) {
  Host* const host = Find(control_address);
  if (!measures_ || host == nullptr || hosts_.size() < 2 || now < host->next_choice) return;
  host->next_choice = now + (host->choices < kQuickChoices ? kQuick : kSlow);
  ++host->choices;
  if (host->asked.size() > kTargets) {
    host->asked.erase(host->asked.begin(), host->asked.end() - static_cast<ptrdiff_t>(kTargets));
  }
  const uint32_t self = index_.at(host->address);
  v1::ProbeTarget* oldest = nullptr;
  absl::Time measured = absl::InfiniteFuture();
  uint64_t bytes = 0;
  for (const uint32_t other : ChooseProbes(self, near_, kTargets, &random_)) {
    v1::ProbeTarget* const target = targets->Add();
    target->set_address(hosts_[other].members.rbegin()->first);
    host->asked.push_back(target->address());
    const auto pair = pairs_.find(KeyOf(self, other));
    const absl::Time at = pair == pairs_.end() ? absl::InfinitePast() : pair->second.bandwidth_at;
    if (oldest != nullptr && at >= measured) continue;
    oldest = target;
    measured = at;
    bytes = BandwidthBytes(self, other);
  }
  if (oldest != nullptr && host->choices % kOneBandwidthIn == 1) {
    oldest->set_bandwidth_bytes(bytes);
  }
}

uint64_t NetworkMap::BandwidthBytes(uint32_t host, uint32_t other) const {
  const NetworkMember& from = hosts_[other].members.rbegin()->second.info;
  const NetworkMember& to = hosts_[host].members.rbegin()->second.info;
  if (from.has_data_network || to.has_data_network) return 0;
  const double bps = std::min(from.bandwidth_bps, to.bandwidth_bps);
  if (bps <= 0) return kBandwidthBytesUnknown;
  return static_cast<uint64_t>(
      std::clamp(bps / 8 * kBandwidthS, kBandwidthBytesLeast, kBandwidthBytesMost));
}

const NetworkMap::Pair* NetworkMap::PairOf(const std::string& a, const std::string& b) const {
  const auto first = index_.find(a);
  const auto second = index_.find(b);
  if (first == index_.end() || second == index_.end()) return nullptr;
  const auto pair = pairs_.find(KeyOf(first->second, second->second));
  return pair == pairs_.end() ? nullptr : &pair->second;
}

uint32_t NetworkMap::TimesMeasured(const std::string& a, const std::string& b) const {
  const Pair* const pair = PairOf(a, b);
  return pair == nullptr ? 0 : pair->times;
}

bool NetworkMap::AllMeasured(const std::set<std::string>& addresses, uint32_t times) const {
  if (addresses.size() > kAllPairsHosts) return false;
  for (auto a = addresses.begin(); a != addresses.end(); ++a) {
    for (auto b = std::next(a); b != addresses.end(); ++b) {
      if (TimesMeasured(*a, *b) < times) return false;
    }
  }
  return true;
}

bool NetworkMap::AllTold() const {
  return std::all_of(hosts_.begin(), hosts_.end(), [](const Host& host) {
    return std::any_of(host.members.begin(), host.members.end(),
                       [](const auto& entry) { return !entry.second.info.place.empty(); });
  });
}

NetworkFacts NetworkMap::Facts() const {
  NetworkFacts facts;
  std::vector<uint32_t> order(hosts_.size());
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [this](uint32_t a, uint32_t b) { return hosts_[a].address < hosts_[b].address; });
  std::vector<uint32_t> place(order.size());
  for (uint32_t i = 0; i < order.size(); ++i) place[order[i]] = i;
  for (const uint32_t i : order) {
    NetworkFacts::Host& host = facts.hosts.emplace_back();
    host.address = hosts_[i].address;
    for (const auto& [address, member] : hosts_[i].members) {
      host.hostname = member.info.hostname;
      if (!member.info.place.empty()) host.place = member.info.place;
      host.members.push_back(member.info.name);
    }
  }
  for (const auto& [key, pair] : pairs_) {
    const auto a = place[static_cast<uint32_t>(key >> 32)];
    const auto b = place[static_cast<uint32_t>(key)];
    facts.pairs.push_back(
        {std::min(a, b), std::max(a, b), pair.halves_s[0], pair.halves_s[1], pair.bandwidth_bps});
  }
  std::sort(facts.pairs.begin(), facts.pairs.end(),
            [](const auto& x, const auto& y) { return std::pair(x.a, x.b) < std::pair(y.a, y.b); });
  return facts;
}

NetworkFacts NetworkMap::FactsOf(const std::set<std::string>& addresses) const {
  NetworkFacts facts;
  for (const std::string& address : addresses) facts.hosts.emplace_back().address = address;
  for (uint32_t a = 0; a < facts.hosts.size(); ++a) {
    for (uint32_t b = a + 1; b < facts.hosts.size(); ++b) {
      const Pair* const pair = PairOf(facts.hosts[a].address, facts.hosts[b].address);
      if (pair == nullptr) continue;
      facts.pairs.push_back({a, b, pair->halves_s[0], pair->halves_s[1], pair->bandwidth_bps});
    }
  }
  return facts;
}

}  // namespace addend
