// The rounds of a tensor on this node: the local ranks that take part and have pushed, and the
// partitions that have their result. Pure: no bytes, socket, thread or clock.
//
// Invariants
//  1. A round starts when all local ranks have pushed it, and after the end of the former round.
//  2. A partition takes a single result of a round, and only of the round that is running.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "lib/base/ids.h"

namespace addend {

class TensorRounds {
 public:
  // `taking_part`: by local rank.
  explicit TensorRounds(const std::vector<bool>& taking_part);

  // The round that is running, or the next to run. From 1.
  Round round() const { return round_; }

  // INVALID_ARGUMENT: not the next round of this rank.
  absl::Status OnPush(uint32_t local_rank, Round round, bool empty);
  bool TakesPart(uint32_t local_rank) const { return pushed_[local_rank] != Push::kOutside; }
  bool HasPushed(uint32_t local_rank) const {
    return TakesPart(local_rank) && pushed_[local_rank] != Push::kMissing;
  }
  bool HasData(uint32_t local_rank) const { return pushed_[local_rank] == Push::kData; }
  bool AllPushed() const;
  bool AnyPushed() const;
  std::vector<uint32_t> Missing() const;

  // All local ranks have pushed and the partitions are known: the round runs from now on.
  void Start(uint32_t partitions);
  bool running() const { return running_; }
  // Whether this result is awaited.
  bool Wants(uint32_t partition, Round round) const;
  // The last round whose result is there; 0: no result yet.
  Round Held(uint32_t partition) const;
  // The result has arrived. Returns whether it was the last result of the round.
  bool OnResult(uint32_t partition);
  // Opens the next round.
  void Finish();

 private:
  enum class Push : uint8_t { kOutside, kMissing, kEmpty, kData };

  Round round_{1};
  bool running_ = false;
  std::vector<Push> pushed_;  // by local rank
  std::vector<bool> held_;    // by partition
  uint32_t held_count_ = 0;
};

}  // namespace addend
