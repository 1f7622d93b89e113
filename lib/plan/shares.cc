// Solves for the shares by water-filling: every server is a vessel whose share grows linearly with
// the round's time t, up to its limit; t_opt is the least t at which the vessels hold all of M.

#include "lib/plan/shares.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"

namespace addend {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Shares below this value are rounding noise: the formula gives zero.
constexpr double kNoShare = 1e-12;

// The water-filling's view of a server: within time t (in units of M / bandwidth 1) it can take
// min(slope * t + offset, limit) of M.
struct Vessel {
  size_t machine;
  double slope;
  double offset;
  double limit;
};

absl::Status Validate(const PlanInput& input) {
  const size_t n = input.gpu_bps.size();
  const size_t k = input.cpu_bps.size();
  if (n == 0) return absl::InvalidArgumentError("A plan needs at least one GPU machine.");
  if (!input.gpu_sums.empty() && input.gpu_sums.size() != n) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "The plan has %d GPU machines, but gpu_sums has %d entries.", n, input.gpu_sums.size()));
  }
  if (!input.limit_bytes.empty() && input.limit_bytes.size() != n + k) {
    return absl::InvalidArgumentError(
        absl::StrFormat("The plan has %d machines, but limit_bytes has %d entries.", n + k,
                        input.limit_bytes.size()));
  }
  for (const std::vector<double>* bps : {&input.gpu_bps, &input.cpu_bps}) {
    for (const double b : *bps) {
      if (!(b >= 0) || std::isinf(b)) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "A machine's bandwidth must be a finite number of bits per second, not %g.", b));
      }
    }
  }
  if (!(input.bytes >= 0) || std::isinf(input.bytes)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "The size to plan for must be a finite number of bytes, not %g.", input.bytes));
  }
  for (const double limit : input.limit_bytes) {
    if (!(limit >= 0)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("A server's limit must not be negative, but it is %g bytes.", limit));
    }
  }
  return absl::OkStatus();
}

// The bandwidths of all machines, GPU machines first, relative to the slowest known bandwidth,
// which `unit` receives (0 if no bandwidth is known). Relative numbers make the result independent
// of the unit, and exact where all are equal.
std::vector<double> RelativeBandwidths(const PlanInput& input, double* unit) {
  std::vector<double> bandwidths = input.gpu_bps;
  bandwidths.insert(bandwidths.end(), input.cpu_bps.begin(), input.cpu_bps.end());
  double slowest = kInfinity;
  for (const double b : bandwidths) {
    if (b > 0) slowest = std::min(slowest, b);
  }
  *unit = std::isinf(slowest) ? 0 : slowest;
  for (double& b : bandwidths) b = b > 0 ? b / slowest : 1;
  return bandwidths;
}

std::vector<Vessel> MakeVessels(const PlanInput& input, std::span<const double> bandwidths) {
  const double n = static_cast<double>(input.gpu_bps.size());
  std::vector<Vessel> vessels;
  for (size_t i = 0; i < bandwidths.size(); ++i) {
    const bool gpu = i < input.gpu_bps.size();
    if (gpu && !input.gpu_sums.empty() && !input.gpu_sums[i]) continue;
    const double limit = input.limit_bytes.empty() || input.bytes == 0
                             ? kInfinity
                             : input.limit_bytes[i] / input.bytes;
    if (!gpu) {
      vessels.push_back({i, bandwidths[i] / n, 0, limit});
    } else if (n > 2) {
      vessels.push_back({i, bandwidths[i] / (n - 2), -1 / (n - 2), limit});
    } else {
      // With at most two GPU machines a colocated server's share costs its link nothing.
      vessels.push_back({i, 0, 1, limit});
    }
  }
  return vessels;
}

double Level(const Vessel& v, double t) { return std::min(v.slope * t + v.offset, v.limit); }

// The least time from `t` on at which the vessels hold all of M; infinity if their limits leave no
// such time. Each pass fixes the full vessels and solves the linear equation for the others. More
// vessels can only become full as the time grows, so the loop ends.
double FillTime(std::span<const Vessel> vessels, double t) {
  for (size_t pass = 0; pass <= vessels.size(); ++pass) {
    double slope = 0, offset = 0, sum = 0;
    for (const Vessel& v : vessels) {
      sum += Level(v, t);
      if (v.slope * t + v.offset >= v.limit) {
        offset += v.limit;
      } else {
        slope += v.slope;
        offset += v.offset;
      }
    }
    if (sum >= 1) return t;
    if (slope <= 0) return kInfinity;
    const double next = (1 - offset) / slope;
    if (next <= t) return t;  // only rounding is left
    t = next;
  }
  return t;
}

// Distributes the part of M that the growing vessels leave over the constant vessels (n <= 2), in
// equal parts up to their limits.
void FillRest(std::span<const Vessel> vessels, double rest, std::vector<double>* shares) {
  std::vector<const Vessel*> open;
  for (const Vessel& v : vessels) {
    if (v.slope == 0) open.push_back(&v);
  }
  std::sort(open.begin(), open.end(), [](const Vessel* a, const Vessel* b) {
    return a->limit != b->limit ? a->limit < b->limit : a->machine < b->machine;
  });
  for (size_t i = 0; i < open.size(); ++i) {
    const double part = std::min(open[i]->limit, rest / static_cast<double>(open.size() - i));
    (*shares)[open[i]->machine] = part;
    rest -= part;
  }
}

std::vector<double> Shares(std::span<const Vessel> vessels, double t, size_t machines) {
  std::vector<double> shares(machines, 0);
  double growing = 0;
  for (const Vessel& v : vessels) {
    if (v.slope == 0) continue;
    const double level = Level(v, t);
    shares[v.machine] = level < kNoShare ? 0 : level;
    growing += shares[v.machine];
  }
  if (growing < 1) FillRest(vessels, 1 - growing, &shares);
  double sum = 0;
  for (const double s : shares) sum += s;
  for (double& s : shares) s /= sum;
  return shares;
}

// `t` is t_opt, `first` the time of the slowest GPU machine's own bytes; both in units of M / unit.
void FillTimes(const PlanInput& input, std::span<const double> bandwidths, double t, double first,
               double unit, Plan* plan) {
  const double n = static_cast<double>(input.gpu_bps.size());
  double cpu = 0;
  for (size_t j = input.gpu_bps.size(); j < bandwidths.size(); ++j) cpu += bandwidths[j];
  const double scale = unit > 0 ? input.bytes * 8 / unit : 0;
  const double ring = 2 * (n - 1) / n * first;
  if (unit > 0) {
    plan->t_opt_s = t * scale;
    plan->t_allreduce_s = ring * scale;
  }
  plan->speedup_vs_allreduce = ring / t;
  if (cpu > 0) {
    const double server = std::max(first, n / cpu);
    if (unit > 0) plan->t_ps_s = server * scale;
    plan->speedup_vs_ps = server / t;
  }
}

}  // namespace

PlanInput HomogeneousInput(size_t gpu_nodes, size_t cpu_nodes, double bytes, double bps) {
  PlanInput input;
  input.gpu_bps.assign(gpu_nodes, bps);
  input.cpu_bps.assign(cpu_nodes, bps);
  input.bytes = bytes;
  return input;
}

absl::StatusOr<Plan> MakePlan(const PlanInput& input) {
  ADDEND_RETURN_IF_ERROR(Validate(input));
  double unit = 0;
  const std::vector<double> bandwidths = RelativeBandwidths(input, &unit);
  const size_t n = input.gpu_bps.size();
  std::vector<Vessel> vessels = MakeVessels(input, bandwidths);
  if (vessels.empty()) {
    return absl::FailedPreconditionError(
        "No machine runs a summation server: start a server, or let the agents run theirs "
        "(--colocated-summation=true).");
  }
  const bool alone = n == 1 && (input.gpu_sums.empty() || input.gpu_sums[0]);
  // A single machine that sums for itself needs no other server, unless its memory is too small.
  if (alone && vessels[0].limit >= 1) vessels.erase(vessels.begin() + 1, vessels.end());

  const auto slowest = std::min_element(bandwidths.begin(), bandwidths.begin() + n);
  const double first = alone && vessels.size() == 1 ? 0 : 1 / *slowest;
  const double t = FillTime(vessels, first);
  if (std::isinf(t)) {
    double room = 0;
    for (const Vessel& v : vessels) room += v.limit * input.bytes;
    return absl::ResourceExhaustedError(
        absl::StrFormat("The job needs room for %.0f bytes, but its %d summation servers have room "
                        "for only %.0f: raise their --memory-limit or add servers.",
                        input.bytes, vessels.size(), room));
  }
  const std::vector<double> shares = Shares(vessels, t, bandwidths.size());
  Plan plan;
  plan.gpu_shares.assign(shares.begin(), shares.begin() + n);
  plan.cpu_shares.assign(shares.begin() + n, shares.end());
  if (alone && vessels.size() == 1) return plan;
  plan.floor = t > first * (1 + kNoShare) ? Floor::kAllLinks : Floor::kOneLink;
  plan.floor_machine = static_cast<size_t>(slowest - bandwidths.begin());
  if (n > 1) FillTimes(input, bandwidths, t, first, unit, &plan);
  return plan;
}

std::string ExplainFloor(const Plan& plan) {
  switch (plan.floor) {
    case Floor::kNoNetwork:
      return "One GPU machine sums its own gradients: nothing travels, and no CPU machine helps.";
    case Floor::kOneLink:
      return absl::StrFormat(
          "The link of GPU machine %d is the floor: its own gradients alone take all of t_opt, so "
          "a further CPU machine does not help.",
          plan.floor_machine);
    case Floor::kAllLinks:
      break;
  }
  return "All links that carry a share are busy until the end: a further CPU machine shortens the "
         "time.";
}

}  // namespace addend
