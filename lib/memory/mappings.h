// The memory that arenas, segments and device ranges have mapped, so that a transport may register
// the whole mapping that a payload lies in, once, and forget it before the memory is given to
// something else. Thread-safe.
#pragma once

#include <memory>

#include "lib/base/bytes.h"

namespace addend {

struct Mapping {
  Bytes memory;  // empty: none
  int dmabuf =
      -1;  // the descriptor of what lies there, if only devices can use it (device_range.h)
};

class UnmapObserver {
 public:
  virtual ~UnmapObserver() = default;
  // On the thread that unmaps. Nobody uses the memory any more.
  virtual void BeforeUnmap(Bytes mapping) = 0;
};

// For whoever maps: right after mapping, and right before unmapping (which tells the observers).
void AddMapping(Bytes mapping, int dmabuf = -1);
void RemoveMapping(Bytes mapping);

// The mapping that `part` lies in; without memory: it lies elsewhere.
Mapping FindMapping(Bytes part);
// `observer` is told of every unmapping as long as it lives.
void ObserveUnmapping(std::weak_ptr<UnmapObserver> observer);

}  // namespace addend
