// Memory that an agent and its trainers share on a node (docs/architecture.md, "Memory").
#pragma once

#include <cstdint>

namespace addend {

// Returns the bytes for tensors of `model_bytes` and `local_size` ranks, including the agent's own
// needs; rounded up to MiB.
inline uint64_t AgentMemoryBytes(uint64_t model_bytes, uint32_t local_size) {
  constexpr uint64_t kMiB = 1 << 20;
  const uint64_t times = local_size == 1 ? 3 : local_size + 3;
  return (model_bytes * times + 128 * kMiB + kMiB - 1) / kMiB * kMiB;
}

}  // namespace addend
