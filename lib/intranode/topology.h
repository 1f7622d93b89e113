// The links to the CPU that a machine's GPUs and NICs share: read by hwloc, from this machine or
// from a file that hwloc has exported from another machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace addend {

// A link to a CPU and the devices that compete for it: a PCIe switch, identified by the topmost
// bridge above its devices (the root port), or a device on a host bridge, which has a link of its
// own.
struct PcieSwitch {
  std::string bus_id;           // of the root port, or of the device on the host bridge
  bool on_host_bridge = false;  // there is no bridge, only the device
  std::optional<uint32_t> numa_node;
  double link_bps = 0;  // to the CPU, each direction, as trained now; 0: unknown
  std::vector<uint32_t> gpus;
  std::vector<uint32_t> nics;
};

// NVIDIA GPUs, with or without a driver.
struct Gpu {
  std::string bus_id;  // "0000:3b:00.0"
  std::string name;    // empty: unknown
  double link_bps = 0;
  uint32_t pcie_switch = 0;
};

// A PCI device with network interfaces. Virtual interfaces and the loopback do not count.
struct Nic {
  std::string bus_id;
  std::vector<std::string> names;  // of its interfaces and RDMA devices: "eth0", "mlx5_0"
  double link_bps = 0;             // of PCIe, not of the network
  uint32_t pcie_switch = 0;
};

// All lists are in the order of bus ids; numbers are indices into these lists.
struct Topology {
  std::vector<PcieSwitch> switches;
  std::vector<Gpu> gpus;
  std::vector<Nic> nics;
  // Pairs of GPUs connected by NVLink, directly or through NVSwitches; the smaller number first.
  std::vector<std::pair<uint32_t, uint32_t>> nvlinks;
  std::vector<std::string> notes;  // sentences about properties that could not be read

  // True if each GPU reaches every other GPU over NVLink, directly or through further GPUs. False
  // for a single GPU.
  bool NvlinkJoinsAll() const;
  // True for a virtual machine that shows several GPUs on its host bridge: their switches are
  // unknown.
  bool HidesSwitches() const;
};

// `file`: an XML file of hwloc (`lstopo FILE.xml`, `addendctl topology --export`); empty: this
// machine. InvalidArgument if the file cannot be read.
absl::StatusOr<Topology> ReadTopology(const std::string& file);

// Exports this machine's topology, NVLink included, for ReadTopology().
absl::Status ExportTopology(const std::string& file);

// The topology with these GPUs only. A bus id may occur twice, and in the form of NVML or CUDA.
// InvalidArgument for a bus id that is not a GPU of `topology`. Pure.
absl::StatusOr<Topology> Restrict(const Topology& topology,
                                  const std::vector<std::string>& bus_ids);

// The number of the GPU with this bus id; InvalidArgument if there is no such GPU. Pure.
absl::StatusOr<uint32_t> FindGpu(const Topology& topology, std::string_view bus_id);

// "00000000:3B:00.0" and "3b:00.0" -> "0000:3b:00.0". Pure.
std::string NormalBusId(std::string_view text);

}  // namespace addend
