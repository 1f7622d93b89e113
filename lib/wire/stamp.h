// In asynchronous mode, which contributions are in a value: sent before every answer (STAMP), given
// back by a node that reports what it holds (RECOVER). Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/bytes.h"

namespace addend {

struct Stamp {
  uint64_t updates = 0;           // contributions in the value; of two copies the larger is newer
  std::vector<uint64_t> applied;  // by node: its last round that is in it
};

// As on the wire: little-endian numbers of 64 bits, the updates first, then the nodes' rounds.
constexpr size_t StampBytes(size_t nodes) { return 8 * (1 + nodes); }
std::vector<std::byte> EncodeStamp(const Stamp& stamp);
// INVALID_ARGUMENT: not the size of a stamp of so many nodes.
absl::StatusOr<Stamp> DecodeStamp(Bytes bytes, size_t nodes);

}  // namespace addend
