// `addend-bench floor`: what a byte of a push-pull costs at least on this machine.
#pragma once

#include "absl/status/status.h"
#include "bench/options.h"

namespace addend {

// Prints the processor seconds, of both ends, that a byte costs on the wire (loopback TCP in calls
// of 1 MiB), and those of a byte of the sum of --nodes contributions that lie in the L2 cache.
absl::Status RunFloor(const BenchOptions& options);

}  // namespace addend
