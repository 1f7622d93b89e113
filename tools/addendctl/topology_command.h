// `addendctl topology`: the links that a machine's GPUs and NICs share, and the aggregation
// strategy of a node.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace addend {

struct TopologyQuestion {
  std::string file;         // hwloc's XML; empty: this machine
  std::string export_file;  // the file to record this machine in; empty: no export
  std::string strategy;     // overrides the rule's choice; empty: the rule's choice
  uint64_t bytes = 0;       // M of the cost model; 0: 1 GB
  bool explain = false;     // prints the cost model too
  bool json = false;
};

// Returns the text to print, which ends with a line feed. Assumes a rank on each GPU, in the order
// of bus ids. InvalidArgument for a file that cannot be read or written, or an unknown strategy.
absl::StatusOr<std::string> AnswerTopology(const TopologyQuestion& question);

}  // namespace addend
