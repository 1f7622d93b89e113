// A row of whole blocks, and the kinds of an encoding's blocks. Not for other folders: they use
// block_codec.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lib/reduce/block_codec.h"

namespace addend {

// Blocks that are to be encoded, from number `first` to `last`.
struct BlockRow {
  const uint8_t* in;  // the first block's elements
  size_t first;
  size_t last;
  const uint8_t* limit;  // an encoding that ends behind it is of no use
};

// The kinds lie two to a byte, the even block in the lower half.
inline BlockKind BlockKindAt(const uint8_t* kinds, size_t block) {
  return static_cast<BlockKind>(kinds[block / 2] >> (block % 2 * 4) & 0xf);
}
// In ascending order of blocks.
inline void SetBlockKind(uint8_t* kinds, size_t block, BlockKind kind) {
  const auto number = static_cast<uint8_t>(kind);
  uint8_t* const both = kinds + block / 2;
  *both = block % 2 == 0 ? number : static_cast<uint8_t>(*both | number << 4);
}

}  // namespace addend
