#include "lib/wire/stamp.h"

#include <bit>
#include <cstring>

#include "absl/strings/str_format.h"

namespace addend {

static_assert(std::endian::native == std::endian::little,
              "stamps are written in the machine's order");

std::vector<std::byte> EncodeStamp(const Stamp& stamp) {
  std::vector<std::byte> bytes(StampBytes(stamp.applied.size()));
  std::memcpy(bytes.data(), &stamp.updates, 8);
  std::memcpy(bytes.data() + 8, stamp.applied.data(), 8 * stamp.applied.size());
  return bytes;
}

absl::StatusOr<Stamp> DecodeStamp(Bytes bytes, size_t nodes) {
  if (bytes.size() != StampBytes(nodes)) {
    return absl::InvalidArgumentError(absl::StrFormat("a stamp of %d bytes, where %d nodes make %d",
                                                      bytes.size(), nodes, StampBytes(nodes)));
  }
  Stamp stamp;
  stamp.applied.resize(nodes);
  std::memcpy(&stamp.updates, bytes.data(), 8);
  std::memcpy(stamp.applied.data(), bytes.data() + 8, 8 * nodes);
  return stamp;
}

}  // namespace addend
