// The peer's segments that a link may copy payloads from. Belongs to the link's thread.
#pragma once

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "lib/base/bytes.h"
#include "lib/base/fd.h"
#include "lib/transport/shm/record.h"
#include "lib/transport/shm/shared_file.h"

namespace addend::shm {

class BorrowedMemory {
 public:
  // The peer announces a segment. INVALID_ARGUMENT, RESOURCE_EXHAUSTED: it cannot be used.
  absl::Status Add(const Record& segment, const UniqueFd& file);
  void Drop(uint32_t segment) { segments_.erase(segment); }
  // Copies the payload that the record names into `room`; if `past_caches`, not into the caches.
  // INVALID_ARGUMENT: there is no such payload. UNAVAILABLE: its owner may have overwritten it, and
  // `room` holds anything.
  absl::Status Copy(const Record& lent, MutableBytes room, bool past_caches) const;
  // As Copy() into nothing.
  absl::Status Check(const Record& lent, size_t bytes) const;

 private:
  struct Segment {
    MappedFile file;
    size_t bytes;
    size_t guard;  // 0: none
  };
  absl::flat_hash_map<uint32_t, Segment> segments_;
};

}  // namespace addend::shm
