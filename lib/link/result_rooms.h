// The results on their way through a link: a raw result goes straight into its room, an encoded
// result into a buffer, from which it is decoded into its room. Several may be on their way, of a
// bundle. Belongs to the agent's core thread.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "lib/base/bytes.h"
#include "lib/base/ids.h"
#include "lib/base/status_macros.h"
#include "lib/memory/arena.h"
#include "lib/wire/frame.h"

namespace addend {

class ResultRooms {
 public:
  // The memory for the payload of a result, or of its stamp. `room`: for the decoded payload.
  absl::StatusOr<MutableBytes> Place(const FrameHeader& header, MutableBytes room) {
    std::shared_ptr<Arena>& buffer = placed_[header.partition];
    buffer = nullptr;
    if (header.encoding == Encoding::kRaw) return room;
    const auto fits = std::find_if(buffers_.begin(), buffers_.end(), [&](const auto& arena) {
      return arena->memory().size() >= header.payload_bytes;
    });
    if (fits != buffers_.end()) {
      buffer = std::move(*fits);
      buffers_.erase(fits);
    } else {
      // As large as any encoding of this size.
      const size_t bytes = std::max<size_t>(room.size(), header.payload_bytes);
      ADDEND_ASSIGN_OR_RETURN(buffer, Arena::Create(bytes));
    }
    return buffer->memory().first(header.payload_bytes);
  }
  // The payload has arrived. The buffer that it lies in; null: it lies in its room.
  std::shared_ptr<Arena> Take(PartitionId partition) {
    auto placed = placed_.extract(partition);
    return placed.empty() ? nullptr : std::move(placed.mapped());
  }
  // The payload in this buffer is decoded. Null is allowed.
  void Reuse(std::shared_ptr<Arena> buffer) {
    if (buffer != nullptr && buffers_.size() < kMaxBundleFrames) {
      buffers_.push_back(std::move(buffer));
    }
  }
  bool IsReceiving(PartitionId partition) const { return placed_.contains(partition); }
  // The connection is lost.
  void Clear() { placed_.clear(); }

 private:
  absl::flat_hash_map<PartitionId, std::shared_ptr<Arena>> placed_;
  std::vector<std::shared_ptr<Arena>> buffers_;  // for further results
};

}  // namespace addend
