// `addend-bench hops`: what it takes on this machine to tell another thread something.
#pragma once

#include "absl/status/status.h"
#include "bench/options.h"

namespace addend {

// Prints, for each way to wake a thread that waits, the microseconds from the call of the one to
// the return of the other: both on one CPU, on two CPUs, and where the kernel puts them.
absl::Status RunHops(const BenchOptions& options);

}  // namespace addend
