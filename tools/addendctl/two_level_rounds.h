// The part of `addendctl plan --groups`: a round of a plan of two levels beside that of a flat
// plan, in a network whose groups have links of limited bandwidth to each other.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/plan/assignment.h"
#include "lib/plan/shares.h"
#include "lib/plan/two_level_round.h"

namespace addend {

// The least size of partitions that CompareTwoLevels chooses by itself.
inline constexpr uint64_t kSmallestOfTwoLevels = 16 << 10;

struct TwoLevelRounds {
  uint32_t groups = 0;
  size_t gpu_nodes = 0;  // of each group
  size_t cpu_nodes = 0;
  uint64_t partition_bytes = 0;  // of the plan of two levels
  TwoLevelSimulation two_levels;
  double flat_opt_s = 0;  // the flat plan's t_opt, or the time of the busiest uplink
  double flat_s = 0;      // of a simulated round of the flat plan, or of the busiest uplink
  size_t flat_links = 0;  // that an agent opens in the flat plan
};

// `input`: machines with known bandwidths and the bytes of `tensors`; `flat`: their plan.
// `flat_s`: the simulated time of its round. `uplink_bps`: of each group, each direction; 0: no
// limits. `partition_bytes`: 0: a size that suits the plan.
// INVALID_ARGUMENT if the groups cannot be equal.
absl::StatusOr<TwoLevelRounds> CompareTwoLevels(const PlanInput& input, const Plan& flat,
                                                double flat_s,
                                                const std::vector<TensorSize>& tensors,
                                                uint32_t groups, double uplink_bps,
                                                uint64_t partition_bytes);

nlohmann::ordered_json ToJson(const TwoLevelRounds& rounds);
std::string ToText(const TwoLevelRounds& rounds);

}  // namespace addend
