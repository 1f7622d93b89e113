// The shares of a plan of two levels: each group of machines sums its own contributions, then the
// groups exchange these sums.
//
// A partition has a summing server in every group, and one of these servers is its owner. A node
// sends its contribution to the server of its own group; that server sends the group's sum to the
// owner, which adds the groups' sums and answers the other groups' servers; they pass the result on
// to their nodes. With G groups, a group of m GPU machines that owns the fraction w of M, and the
// share x of its group's bytes, a machine carries, in each direction,
//
//   GPU machine   M (1 + (m - 1 + (G - 2) w) x)
//   CPU machine   M (m + 1 + (G - 2) w) y
//   the group's uplink   M (1 + (G - 2) w)
//
// The shares of each group sum to 1, and so do the owned fractions. With a single group this is the
// flat plan of shares.h; without CPU machines and with equal groups it takes the same bytes as the
// flat plan. Payloads count as raw bytes. Pure, like shares.h.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/plan/shares.h"

namespace addend {

struct TwoLevelInput {
  // All bandwidths are known. Limits and ratios are ignored.
  PlanInput machines;
  // The group of each machine, GPU machines first: from 0 on, each with a GPU machine.
  std::vector<uint32_t> groups;
  // Bandwidth of each group's links to the other groups together, each direction. Empty: no limits.
  // Infinity: no limit for that group.
  std::vector<double> uplink_bps;
};

struct TwoLevelPlan {
  std::vector<double> shares;  // by machine, of its group's bytes; the sum in each group is 1
  std::vector<double> owned;   // by group, of M; the sum is 1
  double t_opt_s = 0;
};

// Equal groups of consecutive machines. INVALID_ARGUMENT unless `groups` divides the numbers of GPU
// and CPU machines. `uplink_bps` 0: no limits.
absl::StatusOr<TwoLevelInput> EqualGroups(PlanInput machines, uint32_t groups, double uplink_bps);

// The shares with which a round takes the least time. INVALID_ARGUMENT for a malformed input,
// FAILED_PRECONDITION if a group has no summation server.
absl::StatusOr<TwoLevelPlan> MakeTwoLevelPlan(const TwoLevelInput& input);

// The time of a round of the flat plan `flat` in the same network: its t_opt, or more if an uplink
// is busy for longer.
double FlatTimeBetweenGroups(const TwoLevelInput& input, const Plan& flat);

}  // namespace addend
