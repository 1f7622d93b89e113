// Reads this machine's NVLink connections from NVIDIA's management library. The library comes with
// the driver and is loaded at run time: neither headers nor library are needed to build.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace addend {

// A GPU's end of its active NVLinks.
struct NvlinkEnd {
  std::string bus_id;
  std::vector<std::string> peers;  // bus ids of GPUs, an entry for every link
  uint32_t to_switches = 0;        // links to NVSwitches, which join all GPUs with such links
};

// In NVML's order. Unavailable without driver; the message names the missing part.
absl::StatusOr<std::vector<NvlinkEnd>> ReadNvlinks();

}  // namespace addend
