// The order in which the contributions of a round are summed (docs/architecture.md, "Numerics"): a
// tree of radix 8 over the positions of the nodes that take part in the tensor, in ascending order.
// Contributions 8 i to 8 i + 7 are added in turn, then their sums eight at a time, and so on
// until a single sum is left. Up to eight nodes that is the order of the nodes.
//
// Nothing but the positions decides the tree. A node that is lost, or adds nothing, is left out
// where it stands, and nobody moves up.
#pragma once

#include <cstdint>
#include <optional>

namespace addend {

inline constexpr uint32_t kSumRadix = 8;
inline constexpr uint32_t kSumLevelsMost = 6;  // for kMaxNodes positions

// The levels of sums over so many positions: 1 up to 8 positions, 2 up to 64, and so on.
constexpr uint32_t SumLevels(uint32_t positions) {
  uint32_t levels = 1;
  for (uint64_t most = kSumRadix; most < positions; most *= kSumRadix) ++levels;
  return levels;
}

// A run of positions whose contributions are summed elsewhere, by the same tree.
struct SumSpan {
  uint32_t first = 0;
  uint32_t count = 0;

  constexpr uint32_t end() const { return first + count; }
  friend constexpr auto operator<=>(const SumSpan&, const SumSpan&) = default;
};

// How the sum of a span enters a tree of so many positions.
struct SumEntry {
  uint32_t level = 0;   // of the sums to which it belongs
  bool starts = false;  // it is the beginning of such a sum, to which the next positions are added.
                        // Else it is a whole sum of the level below, and a term of this level.
};
// nullopt: the tree has no such sum. It has those of whole groups, of which the last may be
// incomplete, and of the first terms of a group. (That of all positions is its result.)
constexpr std::optional<SumEntry> EntryOf(const SumSpan& span, uint32_t positions) {
  if (span.count == 0 || span.count >= positions || span.first > positions - span.count) {
    return std::nullopt;
  }
  uint32_t level = 0;
  uint64_t whole = 1;  // positions below a term of `level`
  for (; whole < span.count; whole *= kSumRadix) ++level;
  const bool ends = span.end() == positions;
  if (level > 0 && span.first % whole == 0 && (span.count == whole || ends)) {
    return SumEntry{.level = level, .starts = false};
  }
  // The first terms of a group: of single positions, or of whole groups.
  const uint64_t term = level == 0 ? 1 : whole / kSumRadix;
  if (span.first % (term * kSumRadix) != 0 || span.count % term != 0) return std::nullopt;
  return SumEntry{.level = level == 0 ? 0 : level - 1, .starts = true};
}

}  // namespace addend
