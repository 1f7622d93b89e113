// Predicts the time of a round of a plan of two levels, as simulation.h does for a flat plan.
//
// Each group assigns the partitions to its servers by their shares (assignment.h). The owner of a
// partition is the server of the group that is furthest below its part of the owned bytes. The sums
// of groups are sent before contributions: they are few, and without a result nothing comes back.
// Pure and deterministic.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "lib/plan/assignment.h"
#include "lib/plan/two_levels.h"

namespace addend {

struct TwoLevelSimulation {
  double t_s = 0;      // time of a round
  double t_opt_s = 0;  // of the plan of two levels
  double fill_s = 0;   // the part of t_s in which the links fill up
  // How long the busiest link carries partitions, divided by t_opt_s.
  double imbalance = 1;
  uint64_t partitions = 0;
  // The most links that an agent opens: to the other servers of its group, and those of its own
  // server to the owners in other groups.
  uint32_t links = 0;
};

// Simulates a round in which all `tensors` are pushed; the machines' `bytes` are ignored. The
// errors are those of MakeTwoLevelPlan and Assign.
absl::StatusOr<TwoLevelSimulation> SimulateTwoLevelRound(TwoLevelInput input,
                                                         std::span<const TensorSize> tensors,
                                                         const PartitionSize& partition_size);

}  // namespace addend
