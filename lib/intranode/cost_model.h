// The load of a node's PCIe links and the time that it takes: Eq. 8 and 9 of the paper with their
// consequences (section 4.2.1), and the load of every switch's link under a layout. Pure.
//
// Traffic is in multiples of M, the bytes of all tensors of a GPU, in the direction to the CPU over
// a whole round; the other direction carries the same. Bandwidths are of each direction.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/intranode/strategy.h"
#include "lib/intranode/topology.h"

namespace addend {

// Fig. 7: p switches with n GPUs each.
struct PcieTree {
  uint32_t switches = 0;         // p
  uint32_t gpus_per_switch = 0;  // n
  double gpu_switch_bps = 0;     // b(N, S)
  double switch_cpu_bps = 0;     // b(S, C)
};

struct LinkTraffic {
  double gpu_switch = 0;
  double switch_cpu = 0;
};

// Eq. 8 and 9: each GPU copies the part x of its data to the CPU unreduced; the rest takes
// CPU-assisted aggregation.
LinkTraffic TrafficOf(const PcieTree& tree, double x);

// J(x): the time of the busier of the two links.
double CopySeconds(const PcieTree& tree, uint64_t bytes, double x);

// The x of the least J(x): where both links are equally busy, or an end of [0, 1].
double BestCopyPart(const PcieTree& tree);

// J_ar: a ring all-reduce of all GPUs, whose slowest copy from GPU to GPU has `bottleneck_bps`.
double RingSeconds(const PcieTree& tree, uint64_t bytes, double bottleneck_bps);

// The machine as such a tree: its fullest switch and its slowest links; the paper's links (13.1
// GB/s) where hwloc does not know the bandwidth.
PcieTree PcieTreeOf(const Topology& topology);

// Bandwidth between GPUs below different switches, by the paper's measurement: 80 of 105 Gbps.
double CrossSwitchBps(const PcieTree& tree);

// The load of the link from a switch to the CPU.
struct SwitchLoad {
  double gpus = 0;  // sent by the switch's GPUs
  // The NICs' part of the M that the node sends and receives; all NICs have equal parts.
  double nics = 0;
  // The NICs' share of the link's bandwidth while the whole link is in use. 0 without NICs.
  double NicShare() const { return nics > 0 ? nics / (nics + gpus) : 0; }
};

// An entry for every switch of `topology`. InvalidArgument if a rank's GPU is not in it.
absl::StatusOr<std::vector<SwitchLoad>> LoadSwitches(
    const Topology& topology, const std::vector<std::string>& bus_id_of_local_rank,
    const Layout& layout);

}  // namespace addend
