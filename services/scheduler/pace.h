// How long each summation server is at work, as the nodes see it, and which servers are slower or
// faster than their plan takes them for. Pure: no thread, clock or I/O.
//
// The plan makes every server finish at the same moment, so all should be at work equally long. One
// that is at work much longer than the others, window after window, has become slow: its CPU or its
// link is taken by something else. It is believed to be slower by as much as it was at work longer,
// and to be faster again by the same rule.
//
// That it is faster again may not show: links that keep side by side are at work equally long,
// whatever they carry. So one that is no slower than what it counts for is tried with more from
// time to time, the more rarely the more often that was too much.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "absl/time/time.h"
#include "lib/base/ids.h"

namespace addend {

// Of one job in one generation.
class Pace {
 public:
  struct Deviation {
    ServerId server;
    double ratio = 1;    // of its time to the others': above 1, it is slow
    bool trial = false;  // it is level, and may be tried with more
  };
  // From `slow` times the others' time on, and up to `fast` times, something is done.
  struct Thresholds {
    double slow, fast;
  };
  static constexpr Thresholds kThresholds = {1.4, 1 / 1.4};
  // Of a server that does not count in full. With a little too much to do it makes every round
  // longer, with a little too little it hardly does: so that nothing swings, that is left alone.
  static constexpr Thresholds kFineThresholds = {1.08, 0.5};
  static constexpr int kWindows = 2;        // so many in a row, before anything is done
  static constexpr uint64_t kTimes = 3;     // that each server begins to work in a window
  static constexpr uint64_t kSettle = 1;    // the same, in the window after a change
  static constexpr double kLeastUse = 0.1;  // of the time, or it does not matter
  // Windows in a row without being slow before a trial, at first; twice as many after every trial
  // that was too much.
  static constexpr int kPatience = 4, kMostPatience = 128;

  // A node's contributions were on their way, or the server had all and results were awaited.
  struct Service {
    double seconds = 0;
    uint64_t times = 0;
  };
  // A node's report: for each server, how long it was at work for the node since the generation
  // began, and how often it began to be.
  void Report(absl::Time now, NodeId node, const std::map<ServerId, Service>& served);
  // Something was reported since the last Evaluate().
  bool HasNews() const { return news_; }
  // If every server was at work for all of `nodes` a few times since the last call that had an
  // answer: the servers that deviate, perhaps none, the slowest first. `weights`: what to multiply
  // the time of each server with, because it has more or less than its share of whole partitions;
  // one that is not named is left out. `reduced`: those that do not count in full.
  std::optional<std::vector<Deviation>> Evaluate(absl::Time now, const std::set<NodeId>& nodes,
                                                 const std::map<ServerId, double>& weights,
                                                 const std::set<ServerId>& reduced);
  // A server has more or less to do than before: what was measured does not count, nor does the
  // next window, in which things settle.
  void StartOver(absl::Time now);

 private:
  using Seen = std::map<ServerId, Service>;
  struct Trial {
    int level = 0;  // windows in a row
    int patience = kPatience;
    bool running = false;  // the last one has not been too much so far
  };
  double LongestServed() const;
  static double TimeToCompareWith(ServerId server, const std::map<ServerId, double>& times,
                                  const std::set<ServerId>& reduced);
  // After a window, of a server that does not count in full.
  bool TrialIsDue(ServerId server, int streak);
  std::map<ServerId, double> Times(const std::map<ServerId, double>& weights) const;

  std::map<NodeId, Seen> last_;             // the last report of each node
  std::map<NodeId, Seen> window_;           // what was added to it in this window
  std::map<ServerId, int> streak_;          // windows in a row: above 0 slow, below 0 fast
  std::map<ServerId, Trial> trials_;        // of servers that do not count in full
  std::optional<absl::Time> window_began_;  // none: before the first report
  bool settling_ = false;
  bool news_ = false;
};

}  // namespace addend
