// How long a round takes with the tensors and partitions that there really are: the plan's optimum
// is for bytes that can be divided at will and links that are full from the first moment on.
//
// A model of flows. A node keeps its links side by side (lib/transport/convoy.h): they all get
// bandwidth in proportion to what they have to carry, so the machine whose link has the most to
// carry for its bandwidth sets the pace of all. Its link is full but for the beginning, when a node
// sends a partition to every server, and each has to be there from all n nodes before its result
// can leave: nothing comes back yet. Pure and deterministic. bench/optimal compares measured rounds
// with it.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "lib/plan/assignment.h"
#include "lib/plan/shares.h"

namespace addend {

enum class AssignmentKind { kBalanced, kHash };

struct Simulation {
  double t_s = 0;      // of a round; 0 with one GPU machine that sums for itself
  double t_opt_s = 0;  // the plan's
  double fill_s = 0;   // of t_s: the beginning
  // How long the busiest link carries partitions, over t_opt: 1 with shares met exactly.
  double imbalance = 1;
  uint64_t partitions = 0;
};

// Of one round in which all `tensors` are pushed. `machines`: GPU machines with known bandwidths,
// in what TCP carries as payload; its `bytes` are not used. The errors are those of MakePlan,
// Assign and AssignByHash.
absl::StatusOr<Simulation> SimulateRound(PlanInput machines, std::span<const TensorSize> tensors,
                                         const PartitionSize& partition_size, AssignmentKind kind);

}  // namespace addend
