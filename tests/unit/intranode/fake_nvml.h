// A library that looks like NVIDIA's management library to dlopen, with GPUs and links of the
// test's choice.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace addend {

struct FakeNvml {
  int init_error = 0;
  std::vector<std::string> bus_ids = {};        // of the GPUs, as NVML writes them
  std::vector<std::pair<int, int>> links = {};  // between GPUs; kSwitch: to an NVSwitch
  std::vector<int> down = {};  // links, by their place in `links`, that are not active
  static constexpr int kSwitch = -1;
};

FakeNvml& TheFakeNvml();

}  // namespace addend
