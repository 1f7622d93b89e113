// Exact encodings of payloads: a partition's elements in blocks of 64, each block in the fewest
// bytes that keep every bit (docs/wire-format.md, "Encodings"). Gradients of mixed precision are
// mostly bfloat16 numbers in float32 elements, and gradients of embeddings mostly zeros.
//
// Pure functions over memory that the caller owns; any thread; no allocation. Pointers may have any
// alignment. The vector instructions are chosen at run time, and never change a byte.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lib/base/bytes.h"
#include "lib/base/types.h"

namespace addend {

inline constexpr size_t kBlockElements = 64;

// How the elements of a block are written. The numbers travel, and never change. A block that ends
// a partition may have fewer elements.
enum class BlockKind : uint8_t {
  kZero = 0,     // nothing: all elements are +0
  kRaw = 1,      // the elements as they are
  kUpper16 = 2,  // float32: the upper 2 bytes of each; the others are 0 (a bfloat16 number)
  kUpper24 = 3,  // float32: the upper 3 bytes of each; the last is 0
  kHalf = 4,     // float32: each as the float16 number that it is
  // float32: a byte u from 1 to 248, then for each a signed byte q; the element is q 2^(u - 127)
  kScaled8 = 5,
  kSigns = 6,   // float32: a bit for each sign (8 bytes), then the magnitude of all elements
  kSparse = 7,  // a bit for each element that is not +0 (8 bytes), then those elements
  kInt8 = 8,    // integers: each as a signed byte
  kInt16 = 9,   // integers: each as 2 bytes, signed
  kInt32 = 10,  // int64: each as 4 bytes, signed
  kSingle = 11  // float64: each as the float32 number that it is
};
inline constexpr int kBlockKinds = 12;

// The room that EncodeBlocks() needs.
size_t EncodedBytesMax(DType dtype, uint64_t elements);

// Encodes the elements at `data` into `out`, which has EncodedBytesMax() bytes. Returns the size of
// the encoding; 0 if that would be more than `limit` bytes, or if the first quarter of a long
// partition gains next to nothing.
size_t EncodeBlocks(DType dtype, const void* data, uint64_t elements, size_t limit,
                    MutableBytes out);

// Whether `payload` is an encoding of so many elements. Anything else must not be decoded.
bool IsWellFormed(DType dtype, uint64_t elements, Bytes payload);

// Decodes an encoding from its begin to its end. `payload` is well-formed, and outlives the reader.
class BlockReader {
 public:
  BlockReader(DType dtype, uint64_t elements, Bytes payload);

  // Writes the next `count` elements: a multiple of 64, or all that are left.
  void Read(size_t count, void* out);

 private:
  DType dtype_;
  uint64_t left_;         // elements
  const uint8_t* kinds_;  // two to a byte, the lower half first
  size_t next_ = 0;       // block
  const uint8_t* data_;   // of the next block
  const uint8_t* end_;
};

// Decodes all of it.
void DecodeBlocks(DType dtype, uint64_t elements, Bytes payload, void* out);

}  // namespace addend
