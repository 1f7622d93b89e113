// Measurement of a job's bytes on the wire.
#include "services/scheduler/ratio_meter.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace addend {
namespace {

bool Near(double ratio, double other, double most) { return std::abs(ratio / other - 1) <= most; }

bool Near(const WireRatios& ratios, const WireRatios& other, double most) {
  return Near(ratios.contributions, other.contributions, most) &&
         Near(ratios.results, other.results, most);
}

// Two digits.
double Rounded(double ratio) {
  const double scale = std::pow(10, 1 - std::floor(std::log10(ratio)));
  return std::min(1.0, std::round(ratio * scale) / scale);
}

bool Fell(const RatioMeter::Counters& now, const RatioMeter::Counters& then) {
  return now.contribution_bytes < then.contribution_bytes ||
         now.contribution_wire_bytes < then.contribution_wire_bytes ||
         now.result_bytes < then.result_bytes || now.result_wire_bytes < then.result_wire_bytes;
}

}  // namespace

void RatioMeter::Payloads::Add(uint64_t raw_bytes, uint64_t wire_bytes) {
  if (raw_bytes > kMostGrowth) return;
  raw += static_cast<double>(raw_bytes);
  wire += static_cast<double>(std::min(wire_bytes, raw_bytes));
}

// Without payloads nothing is saved.
double RatioMeter::Payloads::Ratio() const {
  return raw == 0 ? 1 : std::clamp(wire / raw, kLeastRatio, 1.0);
}

// Counters that fall are those of a new agent, which has begun at 0 since.
void RatioMeter::Report(NodeId node, const Counters& counters) {
  const auto [known, is_first] = last_.emplace(node, counters);
  if (is_first) return;
  news_ = true;
  const Counters then = std::exchange(known->second, counters);
  if (Fell(counters, then)) return;
  Window& window = window_[node];
  window.contributions.Add(counters.contribution_bytes - then.contribution_bytes,
                           counters.contribution_wire_bytes - then.contribution_wire_bytes);
  window.results.Add(counters.result_bytes - then.result_bytes,
                     counters.result_wire_bytes - then.result_wire_bytes);
}

std::optional<WireRatios> RatioMeter::Evaluate(const std::set<NodeId>& nodes, double round_bytes) {
  news_ = false;
  Window all;
  for (const NodeId node : nodes) {
    const auto seen = window_.find(node);
    if (seen == window_.end()) return std::nullopt;
    for (const auto payloads : {&Window::contributions, &Window::results}) {
      (all.*payloads).raw += (seen->second.*payloads).raw;
      (all.*payloads).wire += (seen->second.*payloads).wire;
    }
  }
  const double bytes = all.contributions.raw + all.results.raw;
  if (bytes == 0 || bytes < 2 * kRounds * round_bytes) return std::nullopt;
  window_.clear();
  const WireRatios now = {all.contributions.Ratio(), all.results.Ratio()};
  const std::optional<WireRatios> former = std::exchange(former_, now);
  agreements_ = former && Near(now, *former, kAgree) ? agreements_ + 1 : 0;
  if (agreements_ == 0) return std::nullopt;
  settled_ = true;
  const WireRatios mean = {(now.contributions + former->contributions) / 2,
                           (now.results + former->results) / 2};
  if (agreements_ < patience_ || Near(mean, planned_, kDiffers)) return std::nullopt;
  patience_ = std::min(2 * patience_, kMostPatience);
  planned_ = {Rounded(mean.contributions), Rounded(mean.results)};
  return planned_;
}

}  // namespace addend
