// Finds the least time by bisection: the fraction of M that a group can own within a time grows
// with the time, and the owned fractions have to sum to 1.

#include "lib/plan/two_levels.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"
#include "lib/plan/bits.h"

namespace addend {
namespace {

// A load by share below this value is rounding noise: the share costs its machine nothing.
constexpr double kNoLoad = 1e-9;

// A group in units of M: bandwidths are fractions of M for each second.
struct Members {
  double gpu_machines = 0;
  std::vector<double> gpu;  // bandwidths of the GPU machines that sum
  double slowest = std::numeric_limits<double>::infinity();  // of all GPU machines
  double cpu = 0;  // bandwidths of the CPU machines, together
  double uplink = std::numeric_limits<double>::infinity();
};

// The bytes for each byte of a GPU machine's share are `d`, those of a CPU machine d + 2. Within
// the time t the group's servers can take all of its bytes if
//
//   sum of (t B_i - 1) / d + sum of t B_j / (d + 2) >= 1
//
// Returns the largest such d; negative if there is none.
double LargestLoad(const Members& group, double t) {
  double gpu = 0;
  for (const double bandwidth : group.gpu) gpu += std::max(0.0, t * bandwidth - 1);
  const double cpu = t * group.cpu;
  const double half = (gpu + cpu - 2) / 2;
  const double root = std::sqrt(half * half + 2 * gpu);
  if (gpu == 0) return 2 * half;  // d (d + 2) = d cpu
  // Without cancellation where the sum of both terms would be small.
  return half >= 0 ? half + root : 2 * gpu / (root - half);
}

double OwnLoad(const Members& group) { return group.gpu_machines - 1; }

// The largest fraction of M that the group can own within the time t; negative if it cannot even
// sum its own bytes.
double MostOwned(const Members& group, double groups, double t) {
  if (t * group.slowest < 1) return -1;
  const double load = LargestLoad(group, t);
  if (groups == 1) return load >= OwnLoad(group) - 1 ? 1 : -1;
  if (load < OwnLoad(group) || t * group.uplink < 1) return -1;
  if (groups == 2) return 1;
  const double most = std::min(load - OwnLoad(group), t * group.uplink - 1) / (groups - 2);
  return std::min(most, 1.0);
}

bool Suffices(std::span<const Members> groups, double t) {
  double owned = 0;
  for (const Members& group : groups) {
    const double most = MostOwned(group, static_cast<double>(groups.size()), t);
    if (most < 0) return false;
    owned += most;
  }
  return owned >= 1;
}

// The least time that suffices, to the last bits of a double.
double LeastTime(std::span<const Members> groups) {
  double high = 1e-9;
  while (!Suffices(groups, high)) high *= 2;
  double low = 0;
  for (int step = 0; step < 200 && low < high; ++step) {
    const double middle = low + (high - low) / 2;
    if (middle <= low || middle >= high) break;
    (Suffices(groups, middle) ? high : low) = middle;
  }
  return high;
}

absl::Status Check(const TwoLevelInput& input) {
  const PlanInput& machines = input.machines;
  const size_t n = machines.gpu_bps.size(), all = n + machines.cpu_bps.size();
  if (n == 0) return absl::InvalidArgumentError("A plan needs at least one GPU machine.");
  if (input.groups.size() != all) {
    return absl::InvalidArgumentError(
        absl::StrFormat("The plan has %d machines, but groups for %d.", all, input.groups.size()));
  }
  if (!machines.gpu_sums.empty() && machines.gpu_sums.size() != n) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "The plan has %d GPU machines, but gpu_sums has %d entries.", n, machines.gpu_sums.size()));
  }
  for (const std::vector<double>* bps : {&machines.gpu_bps, &machines.cpu_bps}) {
    for (const double b : *bps) {
      if (b > 0 && !std::isinf(b)) continue;
      return absl::InvalidArgumentError(absl::StrFormat(
          "A plan of two levels needs each machine's bandwidth, a number of bits per second above "
          "0, not %g.",
          b));
    }
  }
  for (const double b : input.uplink_bps) {
    if (b > 0) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "A group's uplink must carry a number of bits per second above 0, not %g.", b));
  }
  if (!(machines.bytes >= 0) || std::isinf(machines.bytes)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "The size to plan for must be a finite number of bytes, not %g.", machines.bytes));
  }
  const uint32_t groups = *std::max_element(input.groups.begin(), input.groups.end()) + 1;
  if (groups > n || (!input.uplink_bps.empty() && input.uplink_bps.size() != groups)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "The %d groups of a plan need a GPU machine each, and all of them an uplink "
        "or none: there are %d GPU machines and %d uplinks.",
        groups, n, input.uplink_bps.size()));
  }
  return absl::OkStatus();
}

bool Sums(const PlanInput& machines, size_t gpu) {
  return machines.gpu_sums.empty() || machines.gpu_sums[gpu];
}

// The groups, with bandwidths in units of `unit` bits per second.
absl::StatusOr<std::vector<Members>> ReadGroups(const TwoLevelInput& input, double unit) {
  const PlanInput& machines = input.machines;
  const size_t n = machines.gpu_bps.size();
  std::vector<Members> groups(*std::max_element(input.groups.begin(), input.groups.end()) + 1);
  for (size_t i = 0; i < input.groups.size(); ++i) {
    Members& group = groups[input.groups[i]];
    if (i >= n) {
      group.cpu += machines.cpu_bps[i - n] / unit;
      continue;
    }
    ++group.gpu_machines;
    group.slowest = std::min(group.slowest, machines.gpu_bps[i] / unit);
    if (Sums(machines, i)) group.gpu.push_back(machines.gpu_bps[i] / unit);
  }
  for (size_t g = 0; g < groups.size(); ++g) {
    if (!input.uplink_bps.empty()) groups[g].uplink = input.uplink_bps[g] / unit;
    if (groups[g].gpu_machines == 0) {
      return absl::InvalidArgumentError(absl::StrFormat("Group %d has no GPU machine.", g));
    }
    if (groups[g].gpu.empty() && groups[g].cpu == 0) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "Group %d has no summation server: start one in it, or let its agents run "
          "theirs (--colocated-summation=true).",
          g));
    }
  }
  return groups;
}

double SlowestOf(const PlanInput& machines) {
  double slowest = *std::min_element(machines.gpu_bps.begin(), machines.gpu_bps.end());
  for (const double b : machines.cpu_bps) slowest = std::min(slowest, b);
  return slowest;
}

}  // namespace

absl::StatusOr<TwoLevelInput> EqualGroups(PlanInput machines, uint32_t groups, double uplink_bps) {
  const size_t n = machines.gpu_bps.size(), k = machines.cpu_bps.size();
  if (groups == 0 || n % groups != 0 || k % groups != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%d equal groups cannot be made of %d GPU machines and %d CPU machines: the number of "
        "groups has to divide both",
        groups, n, k));
  }
  TwoLevelInput input;
  for (size_t i = 0; i < n; ++i) input.groups.push_back(static_cast<uint32_t>(i / (n / groups)));
  for (size_t j = 0; j < k; ++j) input.groups.push_back(static_cast<uint32_t>(j / (k / groups)));
  if (uplink_bps > 0) input.uplink_bps.assign(groups, uplink_bps);
  input.machines = std::move(machines);
  return input;
}

absl::StatusOr<TwoLevelPlan> MakeTwoLevelPlan(const TwoLevelInput& input) {
  ADDEND_RETURN_IF_ERROR(Check(input));
  const PlanInput& machines = input.machines;
  // Times are then in units of M over the slowest link, whatever the unit of the bandwidths.
  const double unit = SlowestOf(machines);
  ADDEND_ASSIGN_OR_RETURN(const std::vector<Members> groups, ReadGroups(input, unit));
  const double count = static_cast<double>(groups.size());
  const double t = LeastTime(groups);

  TwoLevelPlan plan;
  plan.t_opt_s = t * machines.bytes * kBitsPerByte / unit;
  double sum = 0;
  for (const Members& group : groups) {
    plan.owned.push_back(MostOwned(group, count, t));
    sum += plan.owned.back();
  }
  for (double& owned : plan.owned) owned /= sum;
  std::vector<double> sums(groups.size(), 0);
  for (size_t i = 0; i < input.groups.size(); ++i) {
    const uint32_t g = input.groups[i];
    const double load = OwnLoad(groups[g]) + (count - 2) * plan.owned[g];
    const bool gpu = i < machines.gpu_bps.size();
    double share = 0;
    if (!gpu) {
      share = t * machines.cpu_bps[i - machines.gpu_bps.size()] / unit / (load + 2);
    } else if (Sums(machines, i)) {
      // Where a share costs its machine nothing, all get the same.
      share = load > kNoLoad ? std::max(0.0, t * machines.gpu_bps[i] / unit - 1) / load : 1;
    }
    plan.shares.push_back(share);
    sums[g] += share;
  }
  for (size_t i = 0; i < plan.shares.size(); ++i) plan.shares[i] /= sums[input.groups[i]];
  return plan;
}

double FlatTimeBetweenGroups(const TwoLevelInput& input, const Plan& flat) {
  double time = flat.t_opt_s.value_or(0);
  const size_t n = input.machines.gpu_bps.size();
  std::vector<double> machines(input.uplink_bps.size(), 0), shares(input.uplink_bps.size(), 0);
  for (size_t i = 0; i < input.groups.size() && !input.uplink_bps.empty(); ++i) {
    machines[input.groups[i]] += i < n ? 1 : 0;
    shares[input.groups[i]] += i < n ? flat.gpu_shares[i] : flat.cpu_shares[i - n];
  }
  for (size_t g = 0; g < input.uplink_bps.size(); ++g) {
    // Contributions to servers of other groups, and results for nodes of other groups.
    const double load =
        machines[g] * (1 - shares[g]) + shares[g] * (static_cast<double>(n) - machines[g]);
    time = std::max(time, load * input.machines.bytes * kBitsPerByte / input.uplink_bps[g]);
  }
  return time;
}

}  // namespace addend
