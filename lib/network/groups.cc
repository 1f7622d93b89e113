// The model of round trips is
//
//   round trip of a and b = mean of their class + h_a + h_b,
//
// where the class says at how many levels a and b share a group, and h is a host's own cost. A
// level divides a class in two. Levels are cuts of the tree that average linkage makes of half of
// the probes. A cut is taken if it explains much of the other half's variance within the class that
// it divides, and puts hosts that share a group nearer to each other. Each class is judged by
// itself, because round trips between zones vary by more than those within a rack take.
#include "lib/network/groups.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "lib/network/linkage.h"

namespace addend {
namespace {

// Of a level: it explains this part of the variance of the class that it divides at least, and more
// than chance does, and hosts that share a group at it are nearer by this factor at least.
constexpr double kExplainedLeast = 0.25;
constexpr double kSignificance = 20;  // of the F statistic
constexpr double kNearerLeast = 1.05;
// Cuts that are tried: those with the largest steps of the tree's heights.
constexpr size_t kCutsMost = 48;
constexpr int kPasses = 4;
constexpr int kSweeps = 12;
// Counts as so many measurements that say that a host is as quick as all.
constexpr double kPrior = 0.1;

using Level = std::vector<uint32_t>;
using Distances = std::vector<Distance>;

// Of a class of pairs.
struct Spread {
  double count = 0;
  double sum = 0;
  double squares = 0;

  void Add(double value) {
    ++count;
    sum += value;
    squares += value * value;
  }
  double mean() const { return sum / std::max(count, 1.0); }
  // The sum of the squared distances from the mean.
  double unexplained() const { return std::max(squares - sum * mean(), 0.0); }
};

std::vector<uint32_t> ClassesOf(const Distances& pairs, const HostGroups& groups) {
  std::vector<uint32_t> classes;
  classes.reserve(pairs.size());
  for (const Distance& pair : pairs) classes.push_back(groups.Shared(pair.a, pair.b));
  return classes;
}

// h of each host: weighted least squares, the classes by their variance.
std::vector<double> CostsOf(uint32_t hosts, const Distances& pairs, const HostGroups& groups) {
  const std::vector<uint32_t> classes = ClassesOf(pairs, groups);
  std::vector<double> costs(hosts);
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    std::vector<Spread> spreads(groups.levels.size() + 1);
    for (size_t i = 0; i < pairs.size(); ++i) {
      spreads[classes[i]].Add(pairs[i].value - costs[pairs[i].a] - costs[pairs[i].b]);
    }
    double least = HUGE_VAL;
    const auto variance = [](const Spread& spread) {
      return (spread.unexplained() + 1e-18) / std::max(spread.count, 1.0);
    };
    for (const Spread& spread : spreads) {
      if (spread.count > 0) least = std::min(least, variance(spread));
    }
    std::vector<double> sums(hosts);
    std::vector<double> weights(hosts, kPrior);
    for (size_t i = 0; i < pairs.size(); ++i) {
      const auto& [a, b, value] = pairs[i];
      const Spread& spread = spreads[classes[i]];
      const double weight = least / variance(spread);
      sums[a] += weight * (value - spread.mean() - costs[b]);
      sums[b] += weight * (value - spread.mean() - costs[a]);
      weights[a] += weight;
      weights[b] += weight;
    }
    // Half a step: all hosts move at once.
    for (uint32_t host = 0; host < hosts; ++host) {
      costs[host] = (costs[host] + sums[host] / weights[host]) / 2;
    }
  }
  return costs;
}

Distances WithoutCosts(Distances pairs, const std::vector<double>& costs) {
  for (Distance& pair : pairs) pair.value -= costs[pair.a] + costs[pair.b];
  return pairs;
}

// The tree of a set of distances, and the judgement of its cuts by another set.
class Cuts {
 public:
  Cuts(uint32_t hosts, const Distances& tree, const Distances& judge)
      : hosts_(hosts), merges_(AverageLinkage(hosts, tree)), judge_(judge) {
    FindCuts();
  }

  // The best levels, at most `most`.
  HostGroups Choose(size_t most) const {
    HostGroups chosen;
    while (chosen.levels.size() < most) {
      const std::vector<uint32_t> classes = ClassesOf(judge_, chosen);
      const Level* best = nullptr;
      double best_explained = 0;
      for (const Level& cut : cuts_) {
        const double explained = Explained(cut, chosen, classes);
        if (explained <= best_explained) continue;
        best_explained = explained;
        best = &cut;
      }
      if (best == nullptr) break;
      chosen.levels.insert(chosen.levels.begin() + Place(*best, chosen), *best);
    }
    return chosen;
  }

 private:
  void FindCuts() {
    struct Step {
      double rise;
      size_t merges;
    };
    std::vector<Step> steps;
    double height = merges_.empty() ? 0 : merges_.front().height;
    for (size_t count = 1; count <= merges_.size(); ++count) {
      height = std::max(height, merges_[count - 1].height);
      const bool last = count == merges_.size();
      if (last && count + 1 == hosts_) break;  // a single cluster
      steps.push_back({last ? HUGE_VAL : merges_[count].height - height, count});
    }
    std::stable_sort(steps.begin(), steps.end(),
                     [](const Step& a, const Step& b) { return a.rise > b.rise; });
    steps.resize(std::min(steps.size(), kCutsMost));
    for (const Step& step : steps) cuts_.push_back(ClustersAfter(hosts_, merges_, step.merges));
  }

  // Cuts of a tree contain each other: the cut with fewer groups is the coarser.
  static ptrdiff_t Place(const Level& cut, const HostGroups& chosen) {
    const auto count = [](const Level& level) {
      return *std::max_element(level.begin(), level.end());
    };
    return std::count_if(chosen.levels.begin(), chosen.levels.end(),
                         [&](const Level& level) { return count(level) < count(cut); });
  }

  // The part of the variance of the class that it divides; 0 if it is no level.
  double Explained(const Level& cut, const HostGroups& chosen,
                   const std::vector<uint32_t>& classes) const {
    const auto divided = static_cast<uint32_t>(Place(cut, chosen));
    Spread all;
    Spread within;
    Spread across;
    for (size_t i = 0; i < judge_.size(); ++i) {
      if (classes[i] != divided) continue;
      const auto& [a, b, value] = judge_[i];
      all.Add(value);
      (cut[a] == cut[b] ? within : across).Add(value);
    }
    const double left = within.unexplained() + across.unexplained();
    const double explained = 1 - left / std::max(all.unexplained(), 1e-30);
    const bool nearer = within.mean() * kNearerLeast <= across.mean();
    if (within.count < 1 || across.count < 1 || all.count < 3) return 0;
    if (!nearer || explained < kExplainedLeast) return 0;
    // The hosts' costs were fitted to the same distances.
    const double costs = hosts_ / static_cast<double>(judge_.size()) * all.count;
    const double f = explained / std::max(1 - explained, 1e-9) * (all.count - costs - 2);
    return f < kSignificance ? 0 : explained;
  }

  const uint32_t hosts_;
  const std::vector<Merge> merges_;
  const Distances& judge_;
  std::vector<Level> cuts_;
};

Distances Measured(std::span<const PairLatency> pairs, double (*value)(const PairLatency&)) {
  Distances distances;
  for (const PairLatency& pair : pairs) {
    if (value(pair) > 0) distances.push_back({pair.a, pair.b, value(pair)});
  }
  return distances;
}

}  // namespace

uint32_t HostGroups::Shared(uint32_t a, uint32_t b) const {
  uint32_t shared = 0;
  for (const Level& level : levels) shared += level[a] == level[b] ? 1 : 0;
  return shared;
}

HostGroups FindGroups(uint32_t hosts, std::span<const PairLatency> pairs) {
  const Distances all = Measured(pairs, [](const PairLatency& pair) {
    if (pair.first_s == 0 || pair.second_s == 0) return std::max(pair.first_s, pair.second_s);
    return std::min(pair.first_s, pair.second_s);
  });
  const Distances first = Measured(pairs, [](const PairLatency& pair) { return pair.first_s; });
  const Distances second = Measured(pairs, [](const PairLatency& pair) { return pair.second_s; });
  HostGroups groups;
  // The hosts' own costs and the groups depend on each other.
  for (int pass = 0; pass < kPasses; ++pass) {
    const std::vector<double> costs = CostsOf(hosts, all, groups);
    const Distances judge = WithoutCosts(second, costs);
    const size_t confirmed =
        Cuts(hosts, WithoutCosts(first, costs), judge).Choose(kGroupLevelsMost).levels.size();
    const Distances both = WithoutCosts(all, costs);
    HostGroups found = Cuts(hosts, both, both).Choose(confirmed);
    const bool settled = found.levels == groups.levels;
    groups = std::move(found);
    if (settled) break;
  }
  return groups;
}

}  // namespace addend
