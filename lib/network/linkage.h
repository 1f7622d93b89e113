// Clusters of hosts by average linkage: the two clusters with the least mean distance are merged,
// again and again. Pure and deterministic.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace addend {

// A measured distance. Pairs may be missing: the mean of two clusters is over those that are there.
struct Distance {
  uint32_t a = 0;
  uint32_t b = 0;
  double value = 0;
};

struct Merge {
  uint32_t a = 0;  // any host of each cluster
  uint32_t b = 0;
  double height = 0;  // the mean distance of the two
};

// In their order. Hosts - 1 of them, or less if distances are missing.
std::vector<Merge> AverageLinkage(uint32_t hosts, std::span<const Distance> distances);

// The cluster of each host after the first `count` merges, numbered in the order of their first
// hosts.
std::vector<uint32_t> ClustersAfter(uint32_t hosts, std::span<const Merge> merges, size_t count);

}  // namespace addend
