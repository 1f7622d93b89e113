// Measures how many bytes a job's payloads take on the wire for each raw byte, from the counters in
// its nodes' heartbeats. Pure: no thread, clock or I/O.
//
// Ratios are measured in windows of a few rounds. Two windows in a row that agree settle a value.
// The plan is made for a new value only if it differs clearly from the planned value, so noise
// never moves a partition; and a job whose ratios keep changing is planned anew ever more rarely. A
// value is rounded to two digits: the same gradients give the same plan in every generation.
//
// The counters are claims of the job's own nodes. A counter that falls, or grows by more than a
// node can send, adds nothing; payloads count with at most their raw bytes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "lib/base/ids.h"
#include "lib/plan/shares.h"

namespace addend {

// Of a job in a generation. A restarted scheduler begins with raw payloads and measures again:
// until then the partitions stay where they are, unless another reason moves some.
class RatioMeter {
 public:
  static constexpr double kRounds = 3;          // whose bytes a window has
  static constexpr double kAgree = 0.05;        // the greatest relative difference of two windows
  static constexpr double kDiffers = 0.1;       // from the planned value, of a new value
  static constexpr double kLeastRatio = 0.001;  // a smaller ratio counts as this ratio
  static constexpr int kMostPatience = 64;  // agreements in a row that a new value takes, at most
  // That a node sends or receives between two heartbeats, at most.
  static constexpr uint64_t kMostGrowth = uint64_t{1} << 50;

  // A node's counters since its agent's start; see v1::WireBytes.
  struct Counters {
    uint64_t contribution_bytes = 0;
    uint64_t contribution_wire_bytes = 0;
    uint64_t result_bytes = 0;
    uint64_t result_wire_bytes = 0;
  };
  void Report(NodeId node, const Counters& counters);
  // A node has reported since the last Evaluate().
  bool HasNews() const { return news_; }
  // The ratios to plan with from now on, if they are new. `nodes`: those that take part; all of
  // them have to report. `round_bytes`: raw bytes of contributions, and of results, that all nodes
  // together send and receive in a round.
  std::optional<WireRatios> Evaluate(const std::set<NodeId>& nodes, double round_bytes);

  // The ratios that the job is planned with: raw until settled.
  const WireRatios& planned() const { return planned_; }
  // The ratios have been measured.
  bool settled() const { return settled_; }

 private:
  struct Payloads {
    double raw = 0;
    double wire = 0;

    void Add(uint64_t raw_bytes, uint64_t wire_bytes);
    double Ratio() const;
  };
  struct Window {
    Payloads contributions;
    Payloads results;
  };

  std::map<NodeId, Counters> last_;  // the last report of each node
  std::map<NodeId, Window> window_;
  std::optional<WireRatios> former_;  // of the former window
  int agreements_ = 0;                // in a row
  int patience_ = 1;                  // agreements that a new value takes
  WireRatios planned_;
  bool settled_ = false;
  bool news_ = false;
};

}  // namespace addend
