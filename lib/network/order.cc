#include "lib/network/order.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "lib/base/sum_tree.h"

namespace addend {
namespace {

// The number of levels at which a group of this size can have whole sums.
uint32_t WholeLevels(uint32_t size) {
  uint32_t levels = 0;
  for (; size > 0 && size % kSumRadix == 0; size /= kSumRadix) ++levels;
  return levels;
}

}  // namespace

std::vector<uint32_t> NeighbourOrder(uint32_t hosts, const HostGroups& groups) {
  std::vector<uint32_t> order(hosts);
  std::iota(order.begin(), order.end(), 0U);
  // From the finest level to the coarsest: each sort keeps the order of the former.
  for (auto level = groups.levels.rbegin(); level != groups.levels.rend(); ++level) {
    std::map<uint32_t, uint32_t> sizes;
    std::map<uint32_t, uint32_t> firsts;
    for (uint32_t host = 0; host < hosts; ++host) {
      ++sizes[(*level)[host]];
      firsts.try_emplace((*level)[host], host);
    }
    const auto key = [&](uint32_t host) {
      const uint32_t group = (*level)[host];
      return std::make_pair(kSumLevelsMost - WholeLevels(sizes[group]), firsts[group]);
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t a, uint32_t b) { return key(a) < key(b); });
  }
  return order;
}

}  // namespace addend
