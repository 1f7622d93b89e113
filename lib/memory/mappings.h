// The memory that arenas, segments and device ranges have mapped. A transport registers the whole
// mapping of a payload, or passes it on, once, and forgets it before the addresses are reused.
// Thread-safe.
#pragma once

#include <cstdint>
#include <memory>

#include "lib/base/bytes.h"

namespace addend {

struct Mapping {
  Bytes memory;  // empty: no mapping
  // The dma-buf of the memory, if only devices can use it (device_range.h); otherwise -1.
  int dmabuf = -1;
  // A segment that another process may map (Segment::Lend()): its file, otherwise -1, and the
  // position of its guard behind `memory`; 0: no guard.
  int file = -1;
  size_t guard = 0;
  uint64_t number = 0;  // of no other mapping of this process
};

class UnmapObserver {
 public:
  virtual ~UnmapObserver() = default;
  // Called on the thread that unmaps. The memory is not used any more.
  virtual void BeforeUnmap(const Mapping& mapping) = 0;
};

// Called by the owner of a mapping: right after mapping, and right before unmapping (which notifies
// the observers).
void AddMapping(Bytes mapping, int dmabuf = -1);
void RemoveMapping(Bytes mapping);
// The mapping is a segment that may be lent from now on.
void LendMapping(Bytes mapping, int file, size_t guard);

// The mapping that contains `part`; its memory is empty if there is no such mapping.
Mapping FindMapping(Bytes part);
// Notifies `observer` of every unmapping, as long as it exists.
void ObserveUnmapping(std::weak_ptr<UnmapObserver> observer);

}  // namespace addend
