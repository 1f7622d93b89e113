// Detection of stragglers among the summation servers.
#include "services/scheduler/pace.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace addend {
namespace {

double Median(std::vector<double> times) {
  if (times.empty()) return 0;
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
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

// The short time of a server that does not count in full says nothing about the others.
double Pace::TimeToCompareWith(ServerId server, const std::map<ServerId, double>& times,
                               const std::set<ServerId>& reduced) {
  std::vector<double> others, in_full;
  for (const auto& [other, time] : times) {
    if (other == server) continue;
    others.push_back(time);
    if (!reduced.contains(other)) in_full.push_back(time);
  }
  const bool counts_in_full = !reduced.contains(server);
  return Median(counts_in_full || !in_full.empty() ? in_full : others);
}

double Pace::LongestServed() const {
  double longest = 0;
  for (const auto& [node, seen] : window_) {
    for (const auto& [server, service] : seen) longest = std::max(longest, service.seconds);
  }
  return longest;
}

bool Pace::TrialIsDue(ServerId server, int streak) {
  Trial& trial = trials_[server];
  trial.level = streak > 0 ? 0 : trial.level + 1;
  if (streak >= kWindows && std::exchange(trial.running, false)) {
    trial.patience = std::min(2 * trial.patience, kMostPatience);
  }
  if (trial.running && trial.level >= kPatience) trial.patience = kPatience;  // it was right
  if (trial.level < trial.patience) return false;
  trial.running = true;
  trial.level = 0;
  return true;
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
  std::erase_if(trials_, [&](const auto& trial) { return !reduced.contains(trial.first); });
  std::vector<Deviation> deviations;
  for (const auto& [server, time] : times) {
    const double others = TimeToCompareWith(server, times, reduced);
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
    const bool deviates = std::abs(streak) >= kWindows;
    const bool trial = reduced.contains(server) && TrialIsDue(server, streak);
    if (deviates || trial) deviations.push_back({server, ratio, trial && !deviates});
  }
  std::stable_sort(deviations.begin(), deviations.end(),
                   [](const Deviation& a, const Deviation& b) { return a.ratio > b.ratio; });
  return deviations;
}

void Pace::StartOver(absl::Time now) {
  window_.clear();
  streak_.clear();
  for (auto& [server, trial] : trials_) trial.level = 0;
  if (window_began_) window_began_ = now;
  settling_ = true;
}

}  // namespace addend
