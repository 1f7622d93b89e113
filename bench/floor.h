// `addend-bench floor`: the least cost of a byte of a push-pull on this machine.
#pragma once

#include "absl/status/status.h"
#include "bench/options.h"

namespace addend {

// Prints the processor seconds, of both ends together, per byte on the wire (loopback TCP in calls
// of 1 MiB), and per byte of the sum of --nodes contributions in the L2 cache.
absl::Status RunFloor(const BenchOptions& options);

}  // namespace addend
