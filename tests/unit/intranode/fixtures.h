// The machines of tests/data/topology.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "lib/intranode/topology.h"

namespace addend {

inline Topology Machine(const std::string& name) {
  auto topology = ReadTopology(absl::StrFormat("%s/%s.xml", ADDEND_FIXTURES, name));
  EXPECT_TRUE(topology.ok()) << topology.status();
  return topology.ok() ? *std::move(topology) : Topology{};
}

// A rank on every GPU.
inline std::vector<std::string> AllGpus(const Topology& topology) {
  std::vector<std::string> ids;
  for (const Gpu& gpu : topology.gpus) ids.push_back(gpu.bus_id);
  return ids;
}

}  // namespace addend
