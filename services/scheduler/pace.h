// Detection of stragglers among the summation servers: how long each is at work, as the nodes see
// it, against the time that its plan expects. Pure: no thread, clock or I/O.
//
// The plan makes every server finish at the same moment, so all should be at work equally long. A
// server that is at work much longer than the others, window after window, has become slow: other
// programs use its CPU or its link. Its speed is corrected by the ratio of the times, and by the
// same rule when it is faster again.
//
// A server that is faster again may not show it: links that keep side by side are at work equally
// long, whatever they carry. A server that is no slower than its corrected speed is therefore tried
// with more from time to time, the more rarely the more often that was too much.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "absl/time/time.h"
#include "lib/base/ids.h"

namespace addend {

// The times of a job's servers in a generation.
class Pace {
 public:
  struct Deviation {
    ServerId server;
    double ratio = 1;    // the server's time to the others': above 1: slow
    bool trial = false;  // the server is level and may be tried with more
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
  // answer: the servers that deviate, the slowest first, or an empty list. `weights`: a factor for
  // the time of each server, which has more or less than its share because partitions are whole; a
  // server that is not named is left out. `reduced`: servers that do not count in full.
  std::optional<std::vector<Deviation>> Evaluate(absl::Time now, const std::set<NodeId>& nodes,
                                                 const std::map<ServerId, double>& weights,
                                                 const std::set<ServerId>& reduced);
  // A server has more or less to do than before: earlier measurements do not count, nor does the
  // next window, in which times settle.
  void StartOver(absl::Time now);

 private:
  using Seen = std::map<ServerId, Service>;
  struct Trial {
    int level = 0;  // windows in a row
    int patience = kPatience;
    bool running = false;  // the last trial has not been too much so far
  };
  double LongestServed() const;
  static double TimeToCompareWith(ServerId server, const std::map<ServerId, double>& times,
                                  const std::set<ServerId>& reduced);
  // After a window, of a server that does not count in full.
  bool TrialIsDue(ServerId server, int streak);
  std::map<ServerId, double> Times(const std::map<ServerId, double>& weights) const;

  std::map<NodeId, Seen> last_;             // the last report of each node
  std::map<NodeId, Seen> window_;           // the time added in this window
  std::map<ServerId, int> streak_;          // windows in a row: above 0 slow, below 0 fast
  std::map<ServerId, Trial> trials_;        // of servers that do not count in full
  std::optional<absl::Time> window_began_;  // empty: before the first report
  bool settling_ = false;
  bool news_ = false;
};

}  // namespace addend
