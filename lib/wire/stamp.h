// The version vector of a value in asynchronous mode: the contributions that the value includes.
// Sent before every answer (STAMP), and returned by a node that reports the value it holds
// (RECOVER). Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/bytes.h"

namespace addend {

struct Stamp {
  uint64_t updates = 0;           // contributions in the value; of two copies the larger is newer
  std::vector<uint64_t> applied;  // by node: its last round in the value
};

// The wire format: little-endian numbers of 64 bits, the updates first, then the nodes' rounds.
constexpr size_t StampBytes(size_t nodes) { return 8 * (1 + nodes); }
std::vector<std::byte> EncodeStamp(const Stamp& stamp);
// INVALID_ARGUMENT: not the size of a stamp of `nodes` nodes.
absl::StatusOr<Stamp> DecodeStamp(Bytes bytes, size_t nodes);

}  // namespace addend
