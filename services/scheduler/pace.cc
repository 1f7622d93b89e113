#include "services/scheduler/pace.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace addend {
namespace {

// Of the times of all servers but one.
double MedianWithout(const std::map<ServerId, double>& times, ServerId without) {
  std::vector<double> others;
  for (const auto& [server, time] : times) {
    if (server != without) others.push_back(time);
  }
  if (others.empty()) return 0;
  const auto middle = others.begin() + static_cast<std::ptrdiff_t>(others.size() / 2);
  std::nth_element(others.begin(), middle, others.end());
  return *middle;
}

}  // namespace

void Pace::Report(absl::Time now, NodeId node, const std::map<ServerId, Service>& served) {
  news_ = true;
  if (!window_began_) window_began_ = now;
  if (const auto known = last_.find(node); known != last_.end()) {
    for (const auto& [server, total] : served) {
      Service since = known->second[server];
      if (total.times < since.times) since = Service();  // a link that was made anew begins at 0
      Service& added = window_[node][server];
      added.seconds += total.seconds - since.seconds;
      added.times += total.times - since.times;
    }
  }
  last_[node] = served;
}

std::map<ServerId, double> Pace::Times(const std::map<ServerId, double>& weights) const {
  std::map<ServerId, double> times;
  for (const auto& [node, seen] : window_) {
    for (const auto& [server, service] : seen) {
      if (weights.contains(server)) times[server] += weights.at(server) * service.seconds;
    }
  }
  return times;
}

double Pace::LongestServed() const {
  double longest = 0;
  for (const auto& [node, seen] : window_) {
    for (const auto& [server, service] : seen) longest = std::max(longest, service.seconds);
  }
  return longest;
}

std::optional<std::vector<Pace::Deviation>> Pace::Evaluate(
    absl::Time now, const std::set<NodeId>& nodes, const std::map<ServerId, double>& weights,
    const std::set<ServerId>& reduced) {
  news_ = false;
  for (const NodeId node : nodes) {
    const auto seen = window_.find(node);
    if (seen == window_.end()) return std::nullopt;
    for (const auto& [server, service] : seen->second) {
      if (weights.contains(server) && service.times < (settling_ ? kSettle : kTimes))
        return std::nullopt;
    }
  }
  if (nodes.empty()) return std::nullopt;
  const double length_s = absl::ToDoubleSeconds(now - *window_began_);
  const std::map<ServerId, double> times = Times(weights);
  const bool matters = LongestServed() >= kLeastUse * length_s;
  window_.clear();
  window_began_ = now;
  if (std::exchange(settling_, false)) return std::nullopt;
  std::vector<Deviation> deviations;
  for (const auto& [server, time] : times) {
    const double others = MedianWithout(times, server);
    if (others <= 0 || !matters) {
      streak_.erase(server);
      continue;
    }
    const double ratio = time / others;
    int& streak = streak_[server];
    const auto& [slow, fast] = reduced.contains(server) ? kFineThresholds : kThresholds;
    if (ratio > slow) {
      streak = std::max(streak, 0) + 1;
    } else if (ratio < fast) {
      streak = std::min(streak, 0) - 1;
    } else {
      streak = 0;
    }
    if (std::abs(streak) >= kWindows) deviations.push_back({server, ratio});
  }
  std::stable_sort(deviations.begin(), deviations.end(),
                   [](const Deviation& a, const Deviation& b) { return a.ratio > b.ratio; });
  return deviations;
}

void Pace::StartOver(absl::Time now) {
  window_.clear();
  streak_.clear();
  if (window_began_) window_began_ = now;
  settling_ = true;
}

}  // namespace addend
