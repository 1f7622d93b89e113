// The memory that arenas and segments have mapped, so that a transport may register the whole
// mapping that a payload lies in, once, and forget it before the memory is given to something else.
// Thread-safe.
#pragma once

#include <memory>

#include "lib/base/bytes.h"

namespace addend {

class UnmapObserver {
 public:
  virtual ~UnmapObserver() = default;
  // On the thread that unmaps. Nobody uses the memory any more.
  virtual void BeforeUnmap(Bytes mapping) = 0;
};

// For whoever maps: right after mapping, and right before unmapping (which tells the observers).
void AddMapping(Bytes mapping);
void RemoveMapping(Bytes mapping);

// The mapping that `part` lies in; empty: it lies in other memory.
Bytes FindMapping(Bytes part);
// `observer` is told of every unmapping as long as it lives.
void ObserveUnmapping(std::weak_ptr<UnmapObserver> observer);

}  // namespace addend
