// What NVLink connects on this machine, by NVIDIA's management library. It comes with the driver
// and is loaded while the program runs: neither headers nor library are needed to build.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace addend {

// A GPU's end of its active NVLinks.
struct NvlinkEnd {
  std::string bus_id;
  std::vector<std::string> peers;  // bus ids of GPUs, one for every link
  uint32_t to_switches = 0;        // links to NVSwitches, which join all GPUs that have some
};

// In NVML's order. Unavailable without driver, in a sentence that says what is missing.
absl::StatusOr<std::vector<NvlinkEnd>> ReadNvlinks();

}  // namespace addend
