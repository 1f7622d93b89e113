// A network of groups within groups, and the round trips that probes of it would find.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "lib/network/pair_latency.h"
#include "lib/network/probe_choice.h"

namespace addend {

struct MadeNetwork {
  // groups[l][host], the coarsest level first.
  std::vector<std::vector<uint32_t>> groups;
  std::vector<double> cost_us;      // of each host, in every round trip
  std::vector<double> round_trips;  // in microseconds, by the number of groups that two hosts share

  double RoundTrip(uint32_t a, uint32_t b) const {
    size_t shared = 0;
    for (const auto& level : groups) shared += level[a] == level[b] ? 1 : 0;
    return round_trips[shared] + cost_us[a] + cost_us[b];
  }
};

// The quickest of a few probes: what the network takes, and sometimes a wait.
inline double LeastOfProbes(double round_trip_us, double wait_us, std::mt19937_64* random) {
  std::exponential_distribution<double> wait(1 / wait_us);
  double least = round_trip_us + wait(*random);
  for (int i = 0; i < 3; ++i) least = std::min(least, round_trip_us + wait(*random));
  return least;
}

// Of pairs that `wanted` selects.
inline std::vector<PairLatency> Measure(
    const MadeNetwork& network, double wait_us, uint64_t seed,
    const std::function<bool(uint32_t, uint32_t)>& wanted = [](uint32_t, uint32_t) {
      return true;
    }) {
  std::mt19937_64 random(seed);
  std::vector<PairLatency> pairs;
  const auto hosts = static_cast<uint32_t>(network.cost_us.size());
  for (uint32_t a = 0; a < hosts; ++a) {
    for (uint32_t b = a + 1; b < hosts; ++b) {
      if (!wanted(a, b)) continue;
      const double us = network.RoundTrip(a, b);
      const double first = LeastOfProbes(us, wait_us, &random);
      pairs.push_back({a, b, first * 1e-6, LeastOfProbes(us, wait_us, &random) * 1e-6});
    }
  }
  return pairs;
}

// As after a measurement between the two.
inline void Know(uint32_t a, uint32_t b, double round_trip_s, double at, KnownDistances* near) {
  const auto insert = [&](uint32_t host, uint32_t other) {
    std::vector<KnownDistance>& known = (*near)[host];
    std::erase_if(known, [other](const KnownDistance& one) { return one.to == other; });
    const auto place = std::find_if(known.begin(), known.end(), [&](const KnownDistance& one) {
      return one.round_trip_s > round_trip_s;
    });
    known.insert(place, {other, round_trip_s, at});
  };
  insert(a, b);
  insert(b, a);
}

// Groups of these sizes, in shuffled order.
inline std::vector<uint32_t> Shuffled(const std::vector<uint32_t>& sizes, uint64_t seed) {
  std::vector<uint32_t> group_of;
  for (uint32_t group = 0; group < sizes.size(); ++group) {
    group_of.insert(group_of.end(), sizes[group], group);
  }
  std::mt19937_64 random(seed);
  std::shuffle(group_of.begin(), group_of.end(), random);
  return group_of;
}

// How far two groupings agree, chance taken off: 1 if they are the same (Hubert and Arabie, 1985).
inline double AdjustedRandIndex(const std::vector<uint32_t>& a, const std::vector<uint32_t>& b) {
  double both = 0;
  double in_a = 0;
  double in_b = 0;
  double pairs = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = i + 1; j < a.size(); ++j) {
      both += a[i] == a[j] && b[i] == b[j] ? 1 : 0;
      in_a += a[i] == a[j] ? 1 : 0;
      in_b += b[i] == b[j] ? 1 : 0;
      ++pairs;
    }
  }
  const double chance = in_a * in_b / pairs;
  const double most = (in_a + in_b) / 2;
  return most == chance ? 1 : (both - chance) / (most - chance);
}

}  // namespace addend
