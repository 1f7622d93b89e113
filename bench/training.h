// `addend-bench train`: iterations of a training whose computing is simulated as a GPU's: the
// processor waits for it.
#pragma once

#include "absl/status/status.h"
#include "bench/options.h"

namespace addend {

// Runs this process's rank; every rank of the job runs the same program. Each of the model's
// tensors takes an equal share of --compute: a third of the share in the forward pass, which waits
// for the tensor's sum of the previous iteration, and two thirds in the backward pass, after which
// the tensor is pushed. Rank 0 prints the length of the iterations.
absl::Status RunTraining(const BenchOptions& options);

}  // namespace addend
