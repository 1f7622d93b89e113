#include "lib/network/probe_choice.h"

#include <algorithm>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace addend {
namespace {

// Of the nearest known hosts, and of each of them.
constexpr size_t kAsked = 16;
constexpr size_t kNamed = 16;
constexpr int kTriesForEach = 16;
// A host is in the neighbourhood of another that is nearer than a third by this factor.
constexpr double kNearer = 1.1;

std::span<const KnownDistance> Nearest(const std::vector<KnownDistance>& known, size_t count) {
  return std::span(known).first(std::min(count, known.size()));
}

// The hosts that near hosts know, the nearest by estimate first: in a network that is a
// tree, no further than the longer of the two ways that lead there.
std::vector<uint32_t> Promising(uint32_t host, const KnownDistances& near) {
  std::vector<std::pair<double, uint32_t>> estimates;
  for (const KnownDistance& neighbour : Nearest(near[host], kAsked)) {
    for (const KnownDistance& other : Nearest(near[neighbour.to], kNamed)) {
      estimates.emplace_back(std::max(neighbour.round_trip_s, other.round_trip_s), other.to);
    }
  }
  std::sort(estimates.begin(), estimates.end());
  std::vector<uint32_t> promising;
  for (const auto& [estimate, other] : estimates) promising.push_back(other);
  return promising;
}

// Nobody in the neighbourhood of `other` has told already how far it must be: as far as they are.
bool IsUnexplored(uint32_t other, const std::unordered_map<uint32_t, double>& known,
                  const KnownDistances& near) {
  const std::span<const KnownDistance> neighbours = Nearest(near[other], kNamed);
  return std::none_of(neighbours.begin(), neighbours.end(), [&](const KnownDistance& neighbour) {
    const auto found = known.find(neighbour.to);
    return found != known.end() && neighbour.round_trip_s * kNearer < found->second;
  });
}

}  // namespace

std::vector<uint32_t> ChooseProbes(uint32_t host, const KnownDistances& near, size_t count,
                                   std::mt19937_64* random) {
  const auto hosts = static_cast<uint32_t>(near.size());
  std::unordered_map<uint32_t, double> known;
  for (const KnownDistance& one : near[host]) known.emplace(one.to, one.round_trip_s);
  std::unordered_set<uint32_t> passed = {host};
  for (const auto& [other, round_trip_s] : known) passed.insert(other);
  std::vector<uint32_t> chosen;
  const size_t new_ones = known.size() < kKnownMost ? count : 0;
  for (const uint32_t other : Promising(host, near)) {
    if (chosen.size() >= (new_ones + 1) / 2) break;
    if (passed.insert(other).second) chosen.push_back(other);
  }
  std::uniform_int_distribution<uint32_t> any(0, hosts - 1);
  for (size_t i = 0; i < kTriesForEach * new_ones && chosen.size() < new_ones; ++i) {
    const uint32_t other = any(*random);
    if (passed.contains(other) || !IsUnexplored(other, known, near)) continue;
    passed.insert(other);
    chosen.push_back(other);
  }
  std::vector<KnownDistance> oldest = near[host];
  std::sort(oldest.begin(), oldest.end(), [](const KnownDistance& a, const KnownDistance& b) {
    return a.measured_at < b.measured_at;
  });
  for (const KnownDistance& known : oldest) {
    if (chosen.size() == count) break;
    chosen.push_back(known.to);
  }
  return chosen;
}

}  // namespace addend
