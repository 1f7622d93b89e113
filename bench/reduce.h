// `addend-bench reduce`: the summation kernels against the memory's own bandwidth and against the
// best plain loop, all measured alternately in one run on one core.
#pragma once

#include "absl/status/status.h"
#include "bench/options.h"

namespace addend {

// Sums of 2, 4 and 8 inputs, every float type, out of cache and in the L2 cache; prints JSON or a
// table. Takes about half a minute and 2.3 GiB.
absl::Status RunReduce(const BenchOptions& options);

// Returns the time per byte of a float32 sum of `inputs` contributions, all in the L2 cache.
double SecondsPerSummedByte(size_t inputs);

}  // namespace addend
