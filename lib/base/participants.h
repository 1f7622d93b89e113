// The ranks of a job that take part in a tensor. Pure.
//
// Standard library only: libaddend.so includes it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "lib/base/ids.h"
#include "lib/base/limits.h"

namespace addend {

class Participants {
 public:
  // Ranks below this number can be named.
  static constexpr size_t kMaxBits = 8 * kMaxParticipantsBytes;

  // All ranks of the job.
  Participants() = default;
  // From ranks in any order. nullopt as for FromBits().
  template <typename Ranks>
  static std::optional<Participants> Of(const Ranks& ranks, uint64_t job_size) {
    std::string bits(1, '\0');
    for (const auto rank : ranks) {
      const auto number = static_cast<uint64_t>(rank);
      if (number >= std::min<uint64_t>(job_size, kMaxBits)) return std::nullopt;
      if (bits.size() <= number / 8) bits.resize(number / 8 + 1, '\0');
      bits[number / 8] = static_cast<char>(bits[number / 8] | 1 << number % 8);
    }
    return FromBits(std::move(bits), job_size);
  }
  // From bits(), in any length; "" are all ranks of the job. nullopt: no rank, or ranks that a job
  // of `job_size` ranks does not have.
  static std::optional<Participants> FromBits(std::string bits, uint64_t job_size) {
    if (bits.empty()) return Participants();
    while (!bits.empty() && bits.back() == '\0') bits.pop_back();
    if (bits.empty() || bits.size() * 8 > kMaxBits) return std::nullopt;
    Participants participants;
    participants.bits_ = std::move(bits);
    if (participants.End() > job_size) return std::nullopt;
    if (participants.CountIn(0, participants.End()) == job_size) return Participants();
    return participants;
  }

  bool all() const { return bits_.empty(); }
  // Rank i is bit i % 8 of byte i / 8; the last byte is not 0. "": all ranks.
  const std::string& bits() const { return bits_; }
  bool Contains(uint64_t rank) const {
    if (all()) return true;
    return rank / 8 < bits_.size() && (bits_[rank / 8] >> rank % 8 & 1) != 0;
  }
  // Of the ranks `first` to `first` + `count` - 1.
  uint32_t CountIn(uint64_t first, uint64_t count) const {
    if (all()) return static_cast<uint32_t>(count);
    uint32_t ranks = 0;
    const uint64_t end = std::min<uint64_t>(first + count, bits_.size() * 8);
    for (uint64_t rank = first; rank < end; ++rank) ranks += Contains(rank) ? 1 : 0;
    return ranks;
  }
  uint32_t RanksOf(NodeId node, uint32_t local_size) const {
    return CountIn(uint64_t{node.value()} * local_size, local_size);
  }
  bool HasNode(NodeId node, uint32_t local_size) const { return RanksOf(node, local_size) > 0; }
  uint32_t CountNodes(uint32_t nodes, uint32_t local_size) const {
    if (all()) return nodes;
    uint32_t count = 0;
    for (uint32_t node = 0; node < nodes; ++node) count += HasNode(NodeId(node), local_size);
    return count;
  }
  Participants UnitedWith(const Participants& other) const {
    if (all() || other.all()) return {};
    Participants united = bits_.size() < other.bits_.size() ? other : *this;
    const std::string& fewer = bits_.size() < other.bits_.size() ? bits_ : other.bits_;
    for (size_t i = 0; i < fewer.size(); ++i) {
      united.bits_[i] = static_cast<char>(united.bits_[i] | fewer[i]);
    }
    return united;
  }

  // For people: "all ranks", "ranks 0, 2, 4", "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 56 more".
  std::string Text() const {
    if (all()) return "all ranks";
    constexpr int kNamed = 8;
    std::string text;
    int named = 0;
    for (uint64_t rank = 0; rank < End() && named < kNamed; ++rank) {
      if (!Contains(rank)) continue;
      text += (named++ == 0 ? "" : ", ") + std::to_string(rank);
    }
    const uint32_t all_of_them = CountIn(0, End());
    const std::string head = all_of_them == 1 ? "rank " : "ranks ";
    if (all_of_them <= kNamed) return head + text;
    return head + text + " and " + std::to_string(all_of_them - kNamed) + " more";
  }

  friend bool operator==(const Participants&, const Participants&) = default;
  friend auto operator<=>(const Participants&, const Participants&) = default;

 private:
  uint64_t End() const {
    uint64_t end = bits_.size() * 8;
    while (end > 0 && !Contains(end - 1)) --end;
    return end;
  }

  std::string bits_;
};

}  // namespace addend
