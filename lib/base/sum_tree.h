// The order in which the contributions of a round are summed (docs/architecture.md, "Numerics"): a
// tree of radix 8 over the positions of the nodes that take part in the tensor, in ascending order.
// Contributions 8 i to 8 i + 7 are added in turn, then their sums eight at a time, and so on
// until a single sum is left. Up to eight nodes that is the order of the nodes.
//
// Nothing but the positions decides the tree. A node that is lost, or adds nothing, is left out
// where it stands, and nobody moves up.
#pragma once

#include <cstdint>

namespace addend {

inline constexpr uint32_t kSumRadix = 8;
inline constexpr uint32_t kSumLevelsMost = 6;  // for kMaxNodes positions

// The levels of sums over so many positions: 1 up to 8 positions, 2 up to 64, and so on.
constexpr uint32_t SumLevels(uint32_t positions) {
  uint32_t levels = 1;
  for (uint64_t most = kSumRadix; most < positions; most *= kSumRadix) ++levels;
  return levels;
}

}  // namespace addend
