// `addend-bench local`: a whole cluster on this machine, for the duration of a benchmark.
#pragma once

#include "absl/status/status.h"
#include "bench/options.h"

namespace addend {

// Starts a scheduler, --cpu-nodes summation servers, --nodes agents and --nodes * --local-size
// ranks of `addend-bench push-pull`, from the programs next to this program, on ports that the
// kernel chooses. Returns when the ranks have ended; rank 0 prints the result. Leaves nothing
// behind, even after SIGINT, SIGTERM or a failure.
absl::Status RunLocal(const BenchOptions& options);

}  // namespace addend
