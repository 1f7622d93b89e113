// A partition's payload as it has arrived, raw or encoded, and sums of such payloads. Pure
// functions over memory that the caller owns; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "lib/base/bytes.h"
#include "lib/base/types.h"
#include "lib/wire/frame.h"

namespace addend {

struct EncodedBytes {
  Bytes bytes;
  Encoding encoding = Encoding::kRaw;

  bool raw() const { return encoding == Encoding::kRaw; }
};

// Whether these are so many elements. Other payloads must not be decoded or summed.
bool IsWellFormed(const EncodedBytes& payload, DType dtype, uint64_t elements);

// Writes the elements to `out`, which may be the raw payload itself. Returns the bytes written: 0
// if they were there.
size_t Decode(const EncodedBytes& payload, DType dtype, uint64_t elements, void* out);

// Visits all elements of the payloads, in one visit if all are raw, else tile by tile: encoded
// elements are decoded into the cache just before. `inputs` has the tile's elements of each
// payload, from element `first` on.
using VisitTile =
    std::function<void(size_t first, size_t count, std::span<const void* const> inputs)>;
void ForEachTile(std::span<const EncodedBytes> payloads, DType dtype, uint64_t elements,
                 const VisitTile& visit);

}  // namespace addend
