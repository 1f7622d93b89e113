// Predicts the time of a round with the actual tensors and partitions. The plan's t_opt assumes
// bytes that can be divided at will and links that are full from the start.
//
// The model is one of flows. A node keeps its links side by side (lib/transport/convoy.h): each
// link gets bandwidth in proportion to its bytes. So the machine with the most bytes for its
// bandwidth sets the pace. Its link is full except at the beginning: a result leaves a server only
// after the partition has arrived from all n nodes, so nothing comes back before every node has
// sent a partition to every server. Pure and deterministic. bench/optimal compares measured rounds
// with this model.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "lib/plan/assignment.h"
#include "lib/plan/shares.h"

namespace addend {

enum class AssignmentKind { kBalanced, kHash };

struct Simulation {
  double t_s = 0;              // time of a round; 0 with a single GPU machine that sums for itself
  double t_opt_s = 0;          // t_opt of the plan, of raw bytes
  double t_opt_encoded_s = 0;  // the same, of the bytes on the wire
  double fill_s = 0;           // the part of t_s in which the links fill up
  // How long the busiest link carries partitions, divided by t_opt_encoded_s: 1 if shares are met
  // exactly.
  double imbalance = 1;
  uint64_t partitions = 0;
};

// Simulates a round in which all `tensors` are pushed. `machines` have known bandwidths, counted as
// TCP payload, and the ratios of every partition; their `bytes` are ignored. The errors are those
// of MakePlan, Assign and AssignByHash.
absl::StatusOr<Simulation> SimulateRound(PlanInput machines, std::span<const TensorSize> tensors,
                                         const PartitionSize& partition_size, AssignmentKind kind);

}  // namespace addend
