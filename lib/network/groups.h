// Finds the groups of hosts that are near each other (racks, rows, zones) from the round trips
// between them. Nothing says how many groups there are: groups that half of the probes show
// count only if the other half confirms them.
//
// After ProbeEmbed of PLink: probes of pairs, a cost of each host's own (there h_i), clusters. Pure
// and deterministic.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/network/pair_latency.h"

namespace addend {

inline constexpr uint32_t kGroupLevelsMost = 3;

// levels[l][host]: the host's group, numbered in the order of the groups' first hosts. The coarsest
// level first; each of its groups has whole groups of the next.
struct HostGroups {
  std::vector<std::vector<uint32_t>> levels;

  // The number of levels at which the two hosts are in the same group.
  uint32_t Shared(uint32_t a, uint32_t b) const;
};

// No levels: the round trips show no groups. Not all pairs have to be measured; a host without any
// is a group of its own.
HostGroups FindGroups(uint32_t hosts, std::span<const PairLatency> pairs);

}  // namespace addend
