// A well-mixed function of a number: Steele, Lea and Flood's splitmix64. Stateless, so the same
// number gives the same bits on every machine. Not for secrets.
#pragma once

#include <cstdint>

namespace addend {

constexpr uint64_t Mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

}  // namespace addend
