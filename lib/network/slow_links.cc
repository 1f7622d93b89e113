#include "lib/network/slow_links.h"

#include <algorithm>
#include <map>

namespace addend {
namespace {

constexpr size_t kLinksLeast = 5;
constexpr double kSlow = 2;
// A host with this many links, most of them slow, is slow itself.
constexpr size_t kLinksOfHost = 3;

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Medians of the measurements; 0 where fewer than `least` links are.
LinkFacts MedianOf(const std::vector<const LinkFacts*>& links, size_t least) {
  std::vector<double> latencies;
  std::vector<double> bandwidths;
  for (const LinkFacts* link : links) {
    if (link->latency_s > 0) latencies.push_back(link->latency_s);
    if (link->bandwidth_bps > 0) bandwidths.push_back(link->bandwidth_bps);
  }
  LinkFacts median;
  if (latencies.size() >= least) median.latency_s = Median(std::move(latencies));
  if (bandwidths.size() >= least) median.bandwidth_bps = Median(std::move(bandwidths));
  return median;
}

// By how much it is slower than typical; 1 if it is not, or nothing is known.
double Slowness(const LinkFacts& link, const LinkFacts& typical) {
  double factor = 1;
  if (link.latency_s > 0 && typical.latency_s > 0) {
    factor = std::max(factor, link.latency_s / typical.latency_s);
  }
  if (link.bandwidth_bps > 0 && typical.bandwidth_bps > 0) {
    factor = std::max(factor, typical.bandwidth_bps / link.bandwidth_bps);
  }
  return factor;
}

struct LinksOfHost {
  std::vector<const LinkFacts*> all;
  std::vector<const LinkFacts*> slow;
  bool is_slow() const { return all.size() >= kLinksOfHost && 2 * slow.size() > all.size(); }
};

}  // namespace

std::vector<SlowLink> FindSlowLinks(const HostGroups& groups, std::span<const LinkFacts> links) {
  std::map<uint32_t, std::vector<const LinkFacts*>> kinds;
  for (const LinkFacts& link : links) kinds[groups.Shared(link.a, link.b)].push_back(&link);
  std::map<uint32_t, LinkFacts> typical;
  for (const auto& [kind, of_kind] : kinds) typical[kind] = MedianOf(of_kind, kLinksLeast);
  const auto typical_of = [&](const LinkFacts& link) -> const LinkFacts& {
    return typical[groups.Shared(link.a, link.b)];
  };

  std::map<uint32_t, LinksOfHost> hosts;
  for (const LinkFacts& link : links) {
    const bool slow = Slowness(link, typical_of(link)) > kSlow;
    for (const uint32_t host : {link.a, link.b}) {
      hosts[host].all.push_back(&link);
      if (slow) hosts[host].slow.push_back(&link);
    }
  }
  std::vector<SlowLink> found;
  for (const auto& [host, of_host] : hosts) {
    if (!of_host.is_slow()) continue;
    found.push_back({host, std::nullopt, MedianOf(of_host.slow, 1), typical_of(*of_host.slow[0])});
  }
  for (const LinkFacts& link : links) {
    if (Slowness(link, typical_of(link)) <= kSlow) continue;
    if (hosts[link.a].is_slow() || hosts[link.b].is_slow()) continue;
    found.push_back({link.a, link.b, link, typical_of(link)});
  }
  std::stable_sort(found.begin(), found.end(), [](const SlowLink& x, const SlowLink& y) {
    return Slowness(x.measured, x.typical) > Slowness(y.measured, y.typical);
  });
  return found;
}

}  // namespace addend
