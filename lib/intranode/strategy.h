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
  kCopy,             // every GPU copies all it has; the host sums
  kCpuAssisted,      // the GPUs of a switch reduce-scatter; the host sums what the switches bring
  kReduceBroadcast,  // all GPUs reduce to a root, which copies and later broadcasts
  kReduceScatter,    // all GPUs reduce-scatter, each copies its part
};

const char* NameOf(Strategy strategy);  // "copy", "cpu-assisted", ...
// InvalidArgument lists the names.
absl::StatusOr<Strategy> ParseStrategy(std::string_view name);

// Who aggregates with whom in a node. Ranks are local ones.
struct Layout {
  Strategy strategy = Strategy::kCopy;
  // Ranks whose GPUs aggregate among themselves, ascending; groups in the order of their first
  // ranks. Each rank is in one of them. The host sums what the groups bring.
  std::vector<std::vector<uint32_t>> groups;
  // Each member of a group copies its part. False: one member copies all. A group of one rank has
  // nothing to scatter, whatever it says here.
  bool scatter = false;
  std::vector<uint32_t> roots;   // of kReduceBroadcast, which take turns
  std::vector<std::string> why;  // sentences: what was found, and the rule that follows
};

// The numbers that the rule is about.
struct SwitchCount {
  uint32_t with_nic = 0;     // S_n: switches with GPUs and a NIC
  uint32_t without_nic = 0;  // S_g: switches with GPUs alone
};
SwitchCount CountSwitches(const Topology& topology);

// `demanded`: instead of the rule's choice. InvalidArgument if a rank's GPU is not in the topology,
// or if what is demanded cannot work.
absl::StatusOr<Layout> ChooseLayout(const Topology& topology,
                                    const std::vector<std::string>& bus_id_of_local_rank,
                                    std::optional<Strategy> demanded);

// The local rank from whose GPU a NIC can read all that the node contributes, without host memory
// in between: the GPU shares a PCIe switch with all `nics`, RDMA devices, perhaps with a port
// ("mlx5_0:1"). FAILED_PRECONDITION: there is none, and why.
absl::StatusOr<uint32_t> ChooseDirectRank(const Topology& topology,
                                          const std::vector<std::string>& bus_id_of_local_rank,
                                          const std::vector<std::string>& nics,
                                          const Layout& layout);

}  // namespace addend
