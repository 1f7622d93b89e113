// Names the nodes for which open rounds wait, in the log: once after 10 s, and again after 60 s.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "lib/summation/specs.h"

namespace addend {

class StallLog {
 public:
  // `open`: the engine's roll-call. Returns the sentences that are due now; the partitions of a
  // tensor share a sentence. To be called every few seconds.
  std::vector<std::string> Check(std::span<const OpenRoundInfo> open);

 private:
  using Key = std::tuple<JobId, TensorId, Round>;
  std::map<Key, int> said_;  // how often
};

}  // namespace addend
