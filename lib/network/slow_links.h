// Finds the links that are slower than their like. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lib/network/groups.h"

namespace addend {

// The measurements between two hosts. 0: not measured.
struct LinkFacts {
  uint32_t a = 0;
  uint32_t b = 0;
  double latency_s = 0;
  double bandwidth_bps = 0;
};

struct SlowLink {
  uint32_t a = 0;
  std::optional<uint32_t> b;  // nullopt: most links of `a` are slow, and this is their median
  LinkFacts measured;
  LinkFacts typical;  // the medians of its like: links between hosts that share as many groups
};

// A link is slow with less than half of the typical bandwidth, or more than twice the typical
// latency. Of fewer than five links of a kind nothing is typical. The slowest first.
std::vector<SlowLink> FindSlowLinks(const HostGroups& groups, std::span<const LinkFacts> links);

}  // namespace addend
