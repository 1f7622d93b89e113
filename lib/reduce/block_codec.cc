// The ends of an encoding: its kinds, its last block, and the checks of an encoding that a peer has
// sent. The blocks are in blocks-inl.h, which Highway compiles once per instruction set by
// including this file repeatedly.
#include "lib/reduce/block_codec.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/reduce/block_codec.cc"
#include "hwy/foreach_target.h"  // compiles the blocks below for every target
//
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>

#include "hwy/highway.h"
#include "lib/reduce/blocks-inl.h"

#if HWY_ONCE
namespace addend {
namespace {

HWY_EXPORT(EncodeRow);
HWY_EXPORT(DecodeBlock);
HWY_EXPORT(DecodeRow);

// Behind the last byte that an encoder writes, or a decoder reads.
constexpr size_t kSlack = 16;
constexpr size_t kLargestBlock = kBlockElements * 8;
// Partitions with more blocks are given up after a quarter that gains less than this.
constexpr size_t kLongBlocks = 64;
constexpr double kLeastGain = 0.03;

size_t BlocksOf(uint64_t elements) { return (elements + kBlockElements - 1) / kBlockElements; }
size_t KindBytes(uint64_t elements) { return (BlocksOf(elements) + 1) / 2; }

// The size of a block with `count` elements that begins at `data`, at most `left` bytes before the
// end; nullopt: no such block.
std::optional<size_t> BlockBytes(DType dtype, BlockKind kind, size_t count, const uint8_t* data,
                                 size_t left) {
  const bool floats = dtype == DType::kFloat32;
  const bool integers = dtype == DType::kInt32 || dtype == DType::kInt64;
  switch (kind) {
    case BlockKind::kZero:
      return 0;
    case BlockKind::kRaw:
      return count * SizeOf(dtype);
    case BlockKind::kUpper16:
    case BlockKind::kHalf:
      return floats ? std::optional(count * 2) : std::nullopt;
    case BlockKind::kUpper24:
      return floats ? std::optional(count * 3) : std::nullopt;
    case BlockKind::kScaled8:
      if (!floats || left == 0 || *data < 1 || *data > 248) return std::nullopt;
      return 1 + count;
    case BlockKind::kSigns:
      // Only whole blocks: the magnitude of missing elements would not be theirs.
      return floats && count == kBlockElements ? std::optional(sizeof(uint64_t) + sizeof(float))
                                               : std::nullopt;
    case BlockKind::kSparse: {
      uint64_t bitmap;
      if (left < sizeof(bitmap)) return std::nullopt;
      std::memcpy(&bitmap, data, sizeof(bitmap));
      if (count < kBlockElements && bitmap >> count != 0) return std::nullopt;
      return sizeof(bitmap) + static_cast<size_t>(std::popcount(bitmap)) * SizeOf(dtype);
    }
    case BlockKind::kInt8:
      return integers ? std::optional(count) : std::nullopt;
    case BlockKind::kInt16:
      return integers ? std::optional(count * 2) : std::nullopt;
    case BlockKind::kInt32:
      return dtype == DType::kInt64 ? std::optional(count * 4) : std::nullopt;
    case BlockKind::kSingle:
      return dtype == DType::kFloat64 ? std::optional(count * 4) : std::nullopt;
  }
  return std::nullopt;
}

// Encodes the last block, of `count` elements: as a whole block whose further elements are +0, cut
// off behind the last element.
BlockKind EncodeLast(DType dtype, const uint8_t* in, size_t count, uint8_t** out) {
  std::array<uint8_t, kLargestBlock> whole{};
  std::array<uint8_t, kLargestBlock + kSlack> encoded;
  std::memcpy(whole.data(), in, count * SizeOf(dtype));
  uint8_t* end = encoded.data();
  uint8_t kinds = 0;
  HWY_DYNAMIC_DISPATCH(EncodeRow)(dtype, {whole.data(), 0, 1, end}, &kinds, &end);
  BlockKind kind = BlockKindAt(&kinds, 0);
  if (kind == BlockKind::kSigns) {  // -0 and +0: cannot be cut
    kind = BlockKind::kRaw;
    std::memcpy(encoded.data(), in, count * SizeOf(dtype));
  }
  const size_t bytes = *BlockBytes(dtype, kind, count, encoded.data(), encoded.size());
  std::memcpy(*out, encoded.data(), bytes);
  *out += bytes;
  return kind;
}

}  // namespace

size_t EncodedBytesMax(DType dtype, uint64_t elements) {
  return KindBytes(elements) + BlocksOf(elements) * kBlockElements * SizeOf(dtype) + kSlack;
}

size_t EncodeBlocks(DType dtype, const void* data, uint64_t elements, size_t limit,
                    MutableBytes out) {
  if (KindBytes(elements) > limit || out.size() < EncodedBytesMax(dtype, elements)) return 0;
  const auto* const in = static_cast<const uint8_t*>(data);
  auto* const begin = reinterpret_cast<uint8_t*>(out.data());
  uint8_t* const kinds = begin;
  uint8_t* const blocks = begin + KindBytes(elements);
  const uint8_t* const last_end = begin + limit;
  const size_t whole = elements / kBlockElements;
  const size_t bytes = kBlockElements * SizeOf(dtype);
  uint8_t* end = blocks;
  size_t block = 0;
  if (whole >= kLongBlocks) {
    const size_t quarter = whole / 4;
    block = HWY_DYNAMIC_DISPATCH(EncodeRow)(dtype, {in, 0, quarter, last_end}, kinds, &end);
    const auto most = static_cast<size_t>((1 - kLeastGain) * static_cast<double>(quarter * bytes));
    if (end > blocks + most) return 0;
  }
  HWY_DYNAMIC_DISPATCH(EncodeRow)
  (dtype, {in + block * bytes, block, whole, last_end}, kinds, &end);
  if (end > last_end) return 0;
  if (const size_t rest = elements % kBlockElements; rest > 0) {
    SetBlockKind(kinds, whole, EncodeLast(dtype, in + whole * bytes, rest, &end));
  }
  return end > last_end ? 0 : static_cast<size_t>(end - begin);
}

bool IsWellFormed(DType dtype, uint64_t elements, Bytes payload) {
  const size_t blocks = BlocksOf(elements);
  size_t left = payload.size();
  if (left < KindBytes(elements)) return false;
  left -= KindBytes(elements);
  const auto* const kinds = reinterpret_cast<const uint8_t*>(payload.data());
  const uint8_t* data = kinds + KindBytes(elements);
  for (size_t block = 0; block < blocks; ++block) {
    const size_t count = std::min<uint64_t>(kBlockElements, elements - block * kBlockElements);
    const auto bytes = BlockBytes(dtype, BlockKindAt(kinds, block), count, data, left);
    if (!bytes || *bytes > left) return false;
    data += *bytes;
    left -= *bytes;
  }
  return left == 0 && (blocks % 2 == 0 || kinds[blocks / 2] >> 4 == 0);
}

BlockReader::BlockReader(DType dtype, uint64_t elements, Bytes payload)
    : dtype_(dtype),
      left_(elements),
      kinds_(reinterpret_cast<const uint8_t*>(payload.data())),
      data_(kinds_ + KindBytes(elements)),
      end_(kinds_ + payload.size()) {}

void BlockReader::Read(size_t count, void* out) {
  auto* to = static_cast<uint8_t*>(out);
  const size_t bytes = kBlockElements * SizeOf(dtype_);
  // Blocks near the end are decoded from a copy, so that nothing behind the payload is read.
  const size_t unsafe = std::min<size_t>(kLargestBlock + kSlack, end_ - data_);
  const size_t whole = next_ + count / kBlockElements;
  const size_t first = next_;
  next_ = HWY_DYNAMIC_DISPATCH(DecodeRow)(dtype_, kinds_, first, whole, end_ - unsafe, &data_, to);
  to += (next_ - first) * bytes;
  left_ -= (next_ - first) * kBlockElements;
  count -= (next_ - first) * kBlockElements;
  while (count > 0) {
    const size_t part = std::min(count, kBlockElements);
    const BlockKind kind = BlockKindAt(kinds_, next_++);
    if (kind == BlockKind::kZero) {
      std::memset(to, 0, part * SizeOf(dtype_));
      to += part * SizeOf(dtype_);
      left_ -= part;
      count -= part;
      continue;
    }
    const size_t size = *BlockBytes(dtype_, kind, part, data_, end_ - data_);
    std::array<uint8_t, kLargestBlock + kSlack> block{};
    std::array<uint8_t, kLargestBlock> decoded;
    std::memcpy(block.data(), data_, size);
    HWY_DYNAMIC_DISPATCH(DecodeBlock)(dtype_, kind, block.data(), decoded.data());
    std::memcpy(to, decoded.data(), part * SizeOf(dtype_));
    data_ += size;
    to += part * SizeOf(dtype_);
    left_ -= part;
    count -= part;
  }
}

void DecodeBlocks(DType dtype, uint64_t elements, Bytes payload, void* out) {
  BlockReader(dtype, elements, payload).Read(elements, out);
}

}  // namespace addend
#endif  // HWY_ONCE
