#include "services/scheduler/pace.h"

#include <algorithm>
#include <cmath>

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

void Pace::Report(absl::Time now, NodeId node, const std::map<ServerId, double>& waited_s) {
  if (!window_began_) window_began_ = now;
  const auto known = last_.find(node);
  if (known != last_.end()) {
    for (const auto& [server, waited] : waited_s) {
      const auto before = known->second.waited_s.find(server);
      const double since = before == known->second.waited_s.end() ? 0 : before->second;
      // A link that was made anew begins at 0.
      window_[node].waited_s[server] += waited >= since ? waited - since : waited;
    }
  }
  last_[node].waited_s = waited_s;
}

std::map<ServerId, double> Pace::MeanTimes() const {
  std::map<ServerId, double> sums;
  std::map<ServerId, int> counts;
  for (const auto& [node, seen] : window_) {
    for (const auto& [server, waited] : seen.waited_s) {
      if (waited <= 0) continue;
      sums[server] += waited;
      ++counts[server];
    }
  }
  for (auto& [server, sum] : sums) sum /= counts.at(server);
  return sums;
}

std::vector<Pace::Deviation> Pace::Evaluate(absl::Time now, const std::set<NodeId>& nodes) {
  for (const NodeId node : nodes) {
    if (!window_.contains(node)) return {};
  }
  if (nodes.empty()) return {};
  const double length_s = absl::ToDoubleSeconds(now - *window_began_);
  const std::map<ServerId, double> times = MeanTimes();
  window_.clear();
  window_began_ = now;
  if (std::exchange(settling_, false)) return {};
  std::vector<Deviation> deviations;
  for (const auto& [server, time] : times) {
    const double others = MedianWithout(times, server);
    if (others <= 0 || std::max(time, others) < kLeastUse * length_s) {
      streak_.erase(server);
      continue;
    }
    const double ratio = time / others;
    int& streak = streak_[server];
    if (ratio > kThreshold) {
      streak = std::max(streak, 0) + 1;
    } else if (ratio < 1 / kThreshold) {
      streak = std::min(streak, 0) - 1;
    } else {
      streak = 0;
    }
    if (std::abs(streak) >= kWindows) deviations.push_back({server, ratio});
  }
  return deviations;
}

void Pace::StartOver(absl::Time now) {
  window_.clear();
  streak_.clear();
  if (window_began_) window_began_ = now;
  settling_ = true;
}

}  // namespace addend
