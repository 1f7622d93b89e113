// This process's segments that the peer of a link knows. Belongs to the link's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "lib/base/bytes.h"
#include "lib/memory/mappings.h"
#include "lib/transport/shm/record.h"

namespace addend::shm {

class LentMemory {
 public:
  struct Place {
    Record lent;       // of the payload
    Mapping announce;  // not empty: the peer does not know the segment yet
  };
  // nullopt: the payload cannot be lent.
  std::optional<Place> Find(Bytes payload) {
    if (payload.size() < kLeastLent) return std::nullopt;
    const Mapping mapping = FindMapping(payload);
    if (mapping.file < 0) return std::nullopt;
    Place place;
    auto known = numbers_.find(mapping.number);
    if (known == numbers_.end()) {
      if (numbers_.size() >= kMostSegments) return std::nullopt;
      place.announce = mapping;
      known = numbers_.emplace(mapping.number, ++last_).first;
    }
    place.lent = {.kind = Kind::kLent,
                  .segment = known->second,
                  .value = static_cast<uint64_t>(payload.data() - mapping.memory.data())};
    return place;
  }
  // The mapping of this number (Mapping::number) ends. The peer's number of it, if it knows it.
  std::optional<uint32_t> Forget(uint64_t number) {
    const auto known = numbers_.extract(number);
    if (known.empty()) return std::nullopt;
    return known.mapped();
  }

 private:
  absl::flat_hash_map<uint64_t, uint32_t> numbers_;
  uint32_t last_ = 0;
};

}  // namespace addend::shm
