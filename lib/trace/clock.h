// The clock of everything that is timed along a partition's way. Every machine has its own;
// addendctl trace brings them together.
#pragma once

#include <time.h>

#include <cstdint>

namespace addend {

// Nanoseconds of CLOCK_MONOTONIC. From any thread; some 25 ns.
inline int64_t TraceNow() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace addend
