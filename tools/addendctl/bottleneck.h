// What the rounds of a job waited for: which rank, node, server or link. Pure.
//
// Rounds of tensors that overlap in time are taken together, as a *step*. In each step every place
// has a time for which it was busy, or late; what it has beyond the median of its kind, the others
// would not have waited for without it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/addendctl/trace_data.h"

namespace addend {

enum class Cause : uint8_t {
  kCompute,     // a rank called later than the others
  kIntraNode,   // a node copied or summed longer before it could send (PCIe, memory)
  kNodeLink,    // bytes to and from a node take longer
  kServerLink,  // bytes to and from a CPU server do
  kServerSum,   // a server was adding for longer
};
// "compute", "intra_node", "node_link", "server_link", "server_sum".
std::string NameOf(Cause cause);

struct Suspect {
  Cause cause = Cause::kCompute;
  uint32_t number = 0;  // rank (kCompute), node rank or server id
  std::string place;    // "rank 3", "the link of summation server 2 (on gpu7)"
  double own_s = 0;     // mean over the steps: how long it was busy, or late
  double others_s = 0;  // the same if it were as the median of the others
  double excess_s() const { return own_s - others_s; }
};

// Mean times of a partition's way, over all nodes and steps.
struct PartTimes {
  double intra_node_s = 0;
  double queue_s = 0;
  double push_s = 0;
  double sum_s = 0;
  double pull_s = 0;
};

struct Bottleneck {
  uint64_t steps = 0;
  double step_s = 0;  // mean, from the first call to the last delivery
  double bytes = 0;   // mean of a step
  PartTimes parts;
  std::vector<Suspect> suspects;  // one for each kind of cause, the largest excess first
  // Whether the first of them explains a tenth of the time or more.
  bool found() const;
  std::string sentence;  // for people, without the final stop
};

Bottleneck FindBottleneck(const JobTrace& trace);

}  // namespace addend
