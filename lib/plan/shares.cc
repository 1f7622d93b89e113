// Solves for the shares by water-filling: every server is a vessel whose share grows with the
// round's time t, along at most two lines up to its limit; t_opt is the least t at which the
// vessels hold all of M.
//
// Only the quotient q of the smaller ratio and the larger matters: with the larger ratio as the
// unit of time, a GPU machine carries max(1 + a x, q + b x) with a = q(n-1) - 1 and b = (n-1) - q,
// a CPU machine n y. The two lines of a GPU machine cross at x = 1/n. If a < 0, which takes n = 2
// or very different ratios, the machine also needs a least share.

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

// Slopes of load by share below this value count as 0: the share that a time allows would be
// rounding noise, and the time changes by less than this.
constexpr double kNoSlope = 1e-8;

struct Line {
  double slope = 0;
  double offset = 0;

  double At(double t) const { return slope * t + offset; }
};

// The water-filling's view of a server: within time t (in units of larger ratio * M / bandwidth 1)
// it can take the least of the lines `most` and `limit` of M, and has to take `least` if that is
// above 0.
struct Vessel {
  size_t machine = 0;
  Line most[2];
  Line least;
  double limit = kInfinity;
};

// Shares for some ratios, and their time in units of M / bandwidth 1.
struct Solution {
  std::vector<double> shares;
  bool network = true;
  double time = 0;
  double floor = 0;  // the time that the slowest GPU machine takes with any shares
  size_t floor_machine = 0;
  bool least_shares = false;  // GPU machines need them
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
  for (const double ratio : {input.ratios.contributions, input.ratios.results}) {
    if (!(ratio > 0 && ratio <= 1)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "A ratio of bytes on the wire to raw bytes must be above 0 and at most 1, not %g.",
          ratio));
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

// The share with which a direction whose load is `own` + `slope` * x is busy all the time.
Line BusyShare(double bandwidth, double own, double slope) {
  return {bandwidth / slope, -own / slope};
}

Vessel GpuVessel(size_t machine, double bandwidth, double n, double quotient, double limit) {
  Vessel vessel{.machine = machine, .most = {{0, 1}, {0, 1}}, .least = {}, .limit = limit};
  // A machine by itself has nothing to send. With two GPU machines and equal ratios a colocated
  // server's share costs its link nothing.
  const double a = n > 1 ? quotient * (n - 1) - 1 : 0;
  const double b = n > 1 ? (n - 1) - quotient : 0;
  if (b <= kNoSlope) return vessel;
  vessel.most[0] = vessel.most[1] = BusyShare(bandwidth, quotient, b);
  if (a > kNoSlope) vessel.most[0] = BusyShare(bandwidth, 1, a);
  if (a < -kNoSlope) vessel.least = BusyShare(bandwidth, 1, a);
  return vessel;
}

std::vector<Vessel> MakeVessels(const PlanInput& input, std::span<const double> bandwidths,
                                double quotient) {
  const double n = static_cast<double>(input.gpu_bps.size());
  std::vector<Vessel> vessels;
  for (size_t i = 0; i < bandwidths.size(); ++i) {
    const bool gpu = i < input.gpu_bps.size();
    if (gpu && !input.gpu_sums.empty() && !input.gpu_sums[i]) continue;
    const double limit = input.limit_bytes.empty() || input.bytes == 0
                             ? kInfinity
                             : input.limit_bytes[i] / input.bytes;
    if (gpu) {
      vessels.push_back(GpuVessel(i, bandwidths[i], n, quotient, limit));
    } else {
      const Line most = {bandwidths[i] / n, 0};
      vessels.push_back({.machine = i, .most = {most, most}, .least = {}, .limit = limit});
    }
  }
  return vessels;
}

// The line that bounds the share from `t` on.
const Line& MostFrom(const Vessel& v, double t) {
  const double first = v.most[0].At(t), second = v.most[1].At(t);
  if (first == second) return v.most[0].slope <= v.most[1].slope ? v.most[0] : v.most[1];
  return first < second ? v.most[0] : v.most[1];
}
double Level(const Vessel& v, double t) { return std::min(MostFrom(v, t).At(t), v.limit); }
double LeastShare(const Vessel& v, double t) { return std::max(0.0, v.least.At(t)); }

// The least time from `t` on at which the vessels hold all of M; infinity if their limits leave no
// such time. The vessels hold a concave function of the time: each pass solves the linear equation
// of the lines that bound the vessels now, and its answer is never too late. A vessel only ever
// changes to a line of a smaller slope, so the loop ends.
double FillTime(std::span<const Vessel> vessels, double t) {
  for (size_t pass = 0; pass <= 2 * vessels.size(); ++pass) {
    double slope = 0, offset = 0, sum = 0;
    for (const Vessel& v : vessels) {
      const Line& most = MostFrom(v, t);
      sum += std::min(most.At(t), v.limit);
      if (most.At(t) >= v.limit) {
        offset += v.limit;
      } else {
        slope += most.slope;
        offset += most.offset;
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
    if (v.most[0].slope == 0) open.push_back(&v);
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

// If the vessels hold more than M, no vessel gets less than its least share: each gets the same
// part of the difference between its least and its most.
void KeepLeastShares(std::span<const Vessel> vessels, double t, std::vector<double>* shares) {
  double least = 0, most = 0;
  for (const Vessel& v : vessels) {
    least += LeastShare(v, t);
    most += (*shares)[v.machine];
  }
  if (least == 0 || most <= 1) return;
  const double part = most > least ? std::clamp((1 - least) / (most - least), 0.0, 1.0) : 0;
  for (const Vessel& v : vessels) {
    double& share = (*shares)[v.machine];
    const double lowest = LeastShare(v, t);
    share = lowest + part * std::max(0.0, share - lowest);
  }
}

std::vector<double> Shares(std::span<const Vessel> vessels, double t, size_t machines) {
  std::vector<double> shares(machines, 0);
  double growing = 0;
  for (const Vessel& v : vessels) {
    if (v.most[0].slope == 0) continue;
    const double level = Level(v, t);
    shares[v.machine] = level < kNoShare ? 0 : level;
    growing += shares[v.machine];
  }
  if (growing < 1) FillRest(vessels, 1 - growing, &shares);
  KeepLeastShares(vessels, t, &shares);
  double sum = 0;
  for (const double s : shares) sum += s;
  for (double& s : shares) s /= sum;
  return shares;
}

// Sets the time that the slowest GPU machine takes with the share that suits it best: its own bytes
// without a share, unless it needs a least share.
void SetFloor(const PlanInput& input, std::span<const double> bandwidths,
              std::span<const Vessel> vessels, double quotient, Solution* solution) {
  const double n = static_cast<double>(input.gpu_bps.size());
  std::vector<double> loads(input.gpu_bps.size(), 1);
  for (const Vessel& v : vessels) {
    if (v.least.slope == 0) continue;
    solution->least_shares = true;
    loads[v.machine] += (quotient * (n - 1) - 1) * std::min(1 / n, v.limit);
  }
  for (size_t i = 0; i < loads.size(); ++i) {
    const size_t slowest = solution->floor_machine;
    const double time = loads[i] / bandwidths[i];
    const bool slower =
        time > solution->floor || (time == solution->floor && bandwidths[i] < bandwidths[slowest]);
    if (!slower) continue;
    solution->floor = time;
    solution->floor_machine = i;
  }
}

absl::StatusOr<Solution> Solve(const PlanInput& input, std::span<const double> bandwidths,
                               const WireRatios& ratios) {
  const auto [smaller, larger] = std::minmax(ratios.contributions, ratios.results);
  const double quotient = smaller / larger;
  std::vector<Vessel> vessels = MakeVessels(input, bandwidths, quotient);
  if (vessels.empty()) {
    return absl::FailedPreconditionError(
        "No machine runs a summation server: start a server, or let the agents run theirs "
        "(--colocated-summation=true).");
  }
  const bool alone = input.gpu_bps.size() == 1 && (input.gpu_sums.empty() || input.gpu_sums[0]);
  // A single machine that sums for itself needs no other server, unless its memory is too small.
  if (alone && vessels[0].limit >= 1) vessels.erase(vessels.begin() + 1, vessels.end());

  Solution solution;
  solution.network = !alone || vessels.size() > 1;
  if (solution.network) SetFloor(input, bandwidths, vessels, quotient, &solution);
  const double t = FillTime(vessels, solution.floor);
  if (std::isinf(t)) {
    double room = 0;
    for (const Vessel& v : vessels) room += v.limit * input.bytes;
    return absl::ResourceExhaustedError(
        absl::StrFormat("The job needs room for %.0f bytes, but its %d summation servers have room "
                        "for only %.0f: raise their --memory-limit or add servers.",
                        input.bytes, vessels.size(), room));
  }
  solution.shares = Shares(vessels, t, bandwidths.size());
  solution.time = t * larger;
  solution.floor *= larger;
  return solution;
}

// `raw`, `encoded`: the solutions for raw bytes and for the input's ratios.
void FillTimes(const PlanInput& input, std::span<const double> bandwidths, const Solution& raw,
               const Solution& encoded, double unit, Plan* plan) {
  const double n = static_cast<double>(input.gpu_bps.size());
  double cpu = 0;
  for (size_t j = input.gpu_bps.size(); j < bandwidths.size(); ++j) cpu += bandwidths[j];
  const double scale = unit > 0 ? input.bytes * 8 / unit : 0;
  const double ring = 2 * (n - 1) / n * raw.floor;
  if (unit > 0) {
    plan->t_opt_s = raw.time * scale;
    plan->t_opt_encoded_s = encoded.time * scale;
    plan->t_allreduce_s = ring * scale;
  }
  plan->speedup_vs_allreduce = ring / raw.time;
  if (cpu > 0) {
    const double server = std::max(raw.floor, n / cpu);
    if (unit > 0) plan->t_ps_s = server * scale;
    plan->speedup_vs_ps = server / raw.time;
  }
}

Floor FloorOf(const Solution& solution) {
  if (solution.time > solution.floor * (1 + kNoShare)) return Floor::kAllLinks;
  return solution.least_shares ? Floor::kOneShare : Floor::kOneLink;
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
  ADDEND_ASSIGN_OR_RETURN(const Solution solution, Solve(input, bandwidths, input.ratios));
  const size_t n = input.gpu_bps.size();
  Plan plan;
  plan.gpu_shares.assign(solution.shares.begin(), solution.shares.begin() + n);
  plan.cpu_shares.assign(solution.shares.begin() + n, solution.shares.end());
  if (!solution.network) return plan;
  plan.floor = FloorOf(solution);
  plan.floor_machine = solution.floor_machine;
  if (n == 1) return plan;
  if (input.ratios == WireRatios()) {
    FillTimes(input, bandwidths, solution, solution, unit, &plan);
  } else {
    ADDEND_ASSIGN_OR_RETURN(const Solution raw, Solve(input, bandwidths, WireRatios()));
    FillTimes(input, bandwidths, raw, solution, unit, &plan);
  }
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
    case Floor::kOneShare:
      return absl::StrFormat(
          "The link of GPU machine %d is the floor: even with the share that suits it best it is "
          "busy for all of t_opt, so a further CPU machine does not help.",
          plan.floor_machine);
    case Floor::kAllLinks:
      break;
  }
  return "All links that carry a share are busy until the end: a further CPU machine shortens the "
         "time.";
}

}  // namespace addend
