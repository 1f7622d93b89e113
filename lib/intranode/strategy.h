// How the GPUs of a node bring their tensors to host memory, and the result back: the paper's best
// practice (section 4.2.3). Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/intranode/topology.h"

namespace addend {

enum class Strategy {
  kCopy,             // every GPU copies all its data; the host sums
  kCpuAssisted,      // the GPUs of a switch reduce-scatter; the host sums the switches' results
  kReduceBroadcast,  // all GPUs reduce to a root, which copies and later broadcasts
  kReduceScatter,    // all GPUs reduce-scatter; each copies its part
};

const char* NameOf(Strategy strategy);  // "copy", "cpu-assisted", ...
// InvalidArgument lists the names.
absl::StatusOr<Strategy> ParseStrategy(std::string_view name);

// The groups of ranks that aggregate together in a node. Ranks are local ranks.
struct Layout {
  Strategy strategy = Strategy::kCopy;
  // Groups of ranks, ascending, whose GPUs aggregate among themselves; ordered by their first
  // ranks. Each rank is in a single group. The host sums the groups' results.
  std::vector<std::vector<uint32_t>> groups;
  // Each member of a group copies its part; if false, a single member copies all. A group of a
  // single rank has nothing to scatter, whatever this value.
  bool scatter = false;
  std::vector<uint32_t> roots;   // of kReduceBroadcast: the roots take turns
  std::vector<std::string> why;  // sentences: the findings, and the rule that follows
};

// The numbers that the rule depends on.
struct SwitchCount {
  uint32_t with_nic = 0;     // S_n: switches with GPUs and a NIC
  uint32_t without_nic = 0;  // S_g: switches with GPUs alone
};
SwitchCount CountSwitches(const Topology& topology);

// `demanded` replaces the rule's choice. InvalidArgument if a rank's GPU is not in the topology, or
// if the demanded strategy cannot work.
absl::StatusOr<Layout> ChooseLayout(const Topology& topology,
                                    const std::vector<std::string>& bus_id_of_local_rank,
                                    std::optional<Strategy> demanded);

// The local rank whose GPU has all data that the node contributes, readable by a NIC without a copy
// in host memory: the GPU shares a PCIe switch with all `nics`, RDMA devices, perhaps with a port
// ("mlx5_0:1"). FAILED_PRECONDITION: there is no such rank; the message has the reason.
absl::StatusOr<uint32_t> ChooseDirectRank(const Topology& topology,
                                          const std::vector<std::string>& bus_id_of_local_rank,
                                          const std::vector<std::string>& nics,
                                          const Layout& layout);

}  // namespace addend
