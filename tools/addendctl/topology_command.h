// `addendctl topology`: which links a machine's GPUs and NICs share, and how a node aggregates
// there.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace addend {

struct TopologyQuestion {
  std::string file;         // XML of hwloc; empty: this machine
  std::string export_file;  // where to record this machine; empty: nowhere
  std::string strategy;     // instead of the rule's choice; empty: that
  uint64_t bytes = 0;       // M of the cost model; 0: 1 GB
  bool explain = false;     // with the cost model
  bool json = false;
};

// The text to print, which ends with a line feed. A rank runs on each GPU, in the order of bus ids.
// InvalidArgument for a file that cannot be read or written, or an unknown strategy.
absl::StatusOr<std::string> AnswerTopology(const TopologyQuestion& question);

}  // namespace addend
