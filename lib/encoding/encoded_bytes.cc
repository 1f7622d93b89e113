// Decoding into the cache, a tile of each payload at a time.
#include "lib/encoding/encoded_bytes.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "lib/reduce/block_codec.h"

namespace addend {
namespace {

// Elements of a tile: those of eight float32 payloads fit into the first-level cache.
constexpr size_t kTileElements = 1024;
static_assert(kTileElements % kBlockElements == 0);
// Raw rounds of so many payloads need no memory.
constexpr size_t kInlined = 16;

}  // namespace

bool IsWellFormed(const EncodedBytes& payload, DType dtype, uint64_t elements) {
  if (payload.raw()) return payload.bytes.size() == elements * SizeOf(dtype);
  return IsWellFormed(dtype, elements, payload.bytes);
}

size_t Decode(const EncodedBytes& payload, DType dtype, uint64_t elements, void* out) {
  if (!payload.raw()) {
    DecodeBlocks(dtype, elements, payload.bytes, out);
  } else if (payload.bytes.data() == out) {
    return 0;
  } else {
    std::memcpy(out, payload.bytes.data(), payload.bytes.size());
  }
  return elements * SizeOf(dtype);
}

void ForEachTile(std::span<const EncodedBytes> payloads, DType dtype, uint64_t elements,
                 const VisitTile& visit) {
  absl::InlinedVector<const void*, kInlined> inputs(payloads.size());
  const size_t size = SizeOf(dtype);
  if (std::ranges::all_of(payloads, &EncodedBytes::raw)) {
    std::ranges::transform(payloads, inputs.begin(),
                           [](const EncodedBytes& payload) { return payload.bytes.data(); });
    if (elements > 0) visit(0, elements, inputs);
    return;
  }
  std::vector<std::optional<BlockReader>> readers(payloads.size());
  const std::unique_ptr<std::byte[]> decoded(
      new std::byte[payloads.size() * kTileElements * size]);  // not zeroed
  for (size_t i = 0; i < payloads.size(); ++i) {
    if (!payloads[i].raw()) readers[i].emplace(dtype, elements, payloads[i].bytes);
  }
  for (size_t first = 0; first < elements; first += kTileElements) {
    const size_t count = std::min<size_t>(kTileElements, elements - first);
    for (size_t i = 0; i < payloads.size(); ++i) {
      if (readers[i]) {
        std::byte* const room = decoded.get() + i * kTileElements * size;
        readers[i]->Read(count, room);
        inputs[i] = room;
      } else {
        inputs[i] = payloads[i].bytes.data() + first * size;
      }
    }
    visit(first, count, inputs);
  }
}

}  // namespace addend
