// The round trips between two hosts.
#pragma once

#include <cstdint>

namespace addend {

// The least round trips in two sets of probes that do not know each other, in seconds; 0: not
// measured. The hosts are numbered from 0, a < b.
struct PairLatency {
  uint32_t a = 0;
  uint32_t b = 0;
  double first_s = 0;
  double second_s = 0;
};

}  // namespace addend
