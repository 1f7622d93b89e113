// Finds the bottleneck of a job's rounds: the rank, node, server or link for which they waited.
// Pure.
//
// Rounds of tensors that overlap in time are grouped into a *step*. In each step every place has a
// time for which it was busy, or late; the excess over the median of its kind is the time for which
// the others waited because of it.
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
  kServerLink,  // bytes to and from a CPU server take longer
  kServerSum,   // a server was adding for longer
};
// "compute", "intra_node", "node_link", "server_link", "server_sum".
std::string NameOf(Cause cause);

struct Suspect {
  Cause cause = Cause::kCompute;
  uint32_t number = 0;  // rank (kCompute), node rank or server id
  std::string place;    // "rank 3", "the link of summation server 2 (on gpu7)"
  double own_s = 0;     // mean over the steps of the time for which it was busy, or late
  double others_s = 0;  // the same for the median of the others
  double excess_s() const { return own_s - others_s; }
};

// Mean times of the stages of a partition, over all nodes and steps.
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
  // A suspect each for computing, intra-node work, links and server sums, largest excess first.
  std::vector<Suspect> suspects;
  // Returns whether the first suspect explains more than a tenth of the time.
  bool found() const;
  std::string sentence;  // readable, without a full stop
};

Bottleneck FindBottleneck(const JobTrace& trace);

}  // namespace addend
