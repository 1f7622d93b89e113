#include "lib/plan/recommend.h"

#include <algorithm>
#include <functional>
#include <limits>

namespace addend {
namespace {

constexpr double kGoodEnough = 1.01;

double SumOfKnown(const std::vector<double>& bps) {
  double sum = 0;
  for (const double b : bps) sum += b;
  return sum;
}

// Returns 0 if no bandwidth is known.
double MeanOfKnown(const std::vector<double>& bps) {
  const auto known = std::count_if(bps.begin(), bps.end(), [](double b) { return b > 0; });
  return known == 0 ? 0 : SumOfKnown(bps) / static_cast<double>(known);
}

// The bandwidths of the `n` fastest CPU servers.
std::vector<double> Candidates(const RecommendInput& input, size_t n) {
  const double mean = MeanOfKnown(input.cpu_bps);
  const double further = mean > 0 ? mean : MeanOfKnown(input.gpu_bps);
  std::vector<double> cpu = input.cpu_bps;
  cpu.resize(std::max(n, cpu.size()), further);
  std::sort(cpu.begin(), cpu.end(), std::greater<>());
  cpu.resize(n);
  return cpu;
}

// The optimal time with the k fastest CPU servers, in a unit that is the same for every k. Infinity
// if no machine sums.
double TimeWith(PlanInput input, const std::vector<double>& cpu, size_t k) {
  input.cpu_bps.assign(cpu.begin(), cpu.begin() + static_cast<std::ptrdiff_t>(k));
  const auto plan = MakePlan(input);
  if (!plan.ok()) return std::numeric_limits<double>::infinity();
  return plan->t_opt_encoded_s.value_or(0);  // a machine alone: nothing travels
}

}  // namespace

size_t RecommendedServers(const RecommendInput& input) {
  const size_t n = input.gpu_bps.size();
  if (n == 0) return 0;
  PlanInput plan;
  plan.gpu_bps = input.gpu_bps;
  plan.gpu_sums = input.gpu_sums;
  plan.bytes = 1;
  plan.ratios = input.ratios;
  std::vector<double> cpu = Candidates(input, n);
  // Unknown bandwidths count as the slowest known bandwidth, which must not depend on k.
  double slowest = std::numeric_limits<double>::infinity();
  for (const auto* bps : {&plan.gpu_bps, &cpu}) {
    for (const double b : *bps) {
      if (b > 0) slowest = std::min(slowest, b);
    }
  }
  if (slowest == std::numeric_limits<double>::infinity()) slowest = 1;
  for (auto* bps : {&plan.gpu_bps, &cpu}) {
    std::replace(bps->begin(), bps->end(), 0.0, slowest);
  }
  const double enough = kGoodEnough * TimeWith(plan, cpu, n);
  // A further server never makes the plan slower, so a binary search finds the answer.
  size_t low = 0;
  size_t high = n;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (TimeWith(plan, cpu, middle) <= enough) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

}  // namespace addend
