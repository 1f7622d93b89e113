#include "lib/base/clock.h"

#include <atomic>
#include <chrono>
#include <cmath>

#include "absl/time/clock.h"

namespace addend {
namespace {
std::atomic<double> cluster_ahead_s{0};
}  // namespace

absl::Time SteadyNow() {
  using Clock = std::chrono::steady_clock;
  static const Clock::time_point steady_start = Clock::now();
  static const absl::Time start = absl::Now();
  return start + absl::FromChrono(Clock::now() - steady_start);
}

absl::Time ClusterNow() { return SteadyNow() + absl::Seconds(cluster_ahead_s.load()); }

void KeepClusterTime(double now_unix_s) {
  if (!std::isfinite(now_unix_s) || now_unix_s <= 0) return;
  cluster_ahead_s.store(now_unix_s - absl::ToDoubleSeconds(SteadyNow() - absl::UnixEpoch()));
}

}  // namespace addend
