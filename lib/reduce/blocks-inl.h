// The blocks of an encoding, compiled once for every instruction set. Only block_codec.cc includes
// this file.
#if defined(ADDEND_LIB_REDUCE_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ADDEND_LIB_REDUCE_BLOCKS_INL_H_
#undef ADDEND_LIB_REDUCE_BLOCKS_INL_H_
#else
#define ADDEND_LIB_REDUCE_BLOCKS_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "hwy/highway.h"
#include "lib/reduce/block_row.h"
#include "lib/reduce/float_blocks-inl.h"
#include "lib/reduce/sparse_blocks-inl.h"

HWY_BEFORE_NAMESPACE();
namespace addend::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// ---- other types ----

template <typename Narrow, typename T>
HWY_INLINE void PutNarrow(const uint8_t* in, uint8_t** out) {
  for (size_t i = 0; i < kBlockElements; ++i) {
    T element;
    std::memcpy(&element, in + i * sizeof(T), sizeof(T));
    const auto narrow = static_cast<Narrow>(element);
    std::memcpy(*out + i * sizeof(Narrow), &narrow, sizeof(Narrow));
  }
  *out += kBlockElements * sizeof(Narrow);
}

template <typename Narrow, typename T>
HWY_INLINE const uint8_t* GetNarrow(const uint8_t* in, uint8_t* out) {
  for (size_t i = 0; i < kBlockElements; ++i) {
    Narrow narrow;
    std::memcpy(&narrow, in + i * sizeof(Narrow), sizeof(Narrow));
    const auto element = static_cast<T>(narrow);
    std::memcpy(out + i * sizeof(T), &element, sizeof(T));
  }
  return in + kBlockElements * sizeof(Narrow);
}

// The narrowest kind for integers; kRaw: all of T is needed.
template <typename T>
HWY_INLINE BlockKind NarrowestInteger(const uint8_t* in) {
  using Unsigned = std::make_unsigned_t<T>;
  Unsigned any = 0;  // the bits of the magnitudes
  for (size_t i = 0; i < kBlockElements; ++i) {
    T element;
    std::memcpy(&element, in + i * sizeof(T), sizeof(T));
    any |= static_cast<Unsigned>(element ^ (element >> (8 * sizeof(T) - 1)));
  }
  if (any < 0x80) return BlockKind::kInt8;
  if (any < 0x8000) return BlockKind::kInt16;
  if (sizeof(T) > 4 && any < 0x80000000u) return BlockKind::kInt32;
  return BlockKind::kRaw;
}

// Every element is a float32 number, and no NaN.
HWY_INLINE bool AreSingle(const uint8_t* in) {
  bool single = true;
  for (size_t i = 0; i < kBlockElements; ++i) {
    double element;
    std::memcpy(&element, in + i * sizeof(element), sizeof(element));
    const auto again = static_cast<double>(static_cast<float>(element));
    single &= std::bit_cast<uint64_t>(again) == std::bit_cast<uint64_t>(element);
    single &= element == element;
  }
  return single;
}

constexpr size_t BytesOfNarrow(BlockKind kind) {
  switch (kind) {
    case BlockKind::kInt8:
      return 1;
    case BlockKind::kInt16:
      return 2;
    case BlockKind::kInt32:
    case BlockKind::kSingle:
      return 4;
    default:
      return 8;
  }
}

// T: float64 as double; 2-byte types as uint16_t.
template <typename T>
HWY_INLINE BlockKind EncodeOther(const uint8_t* in, uint8_t** out) {
  using Bits = std::conditional_t<sizeof(T) == 8, uint64_t,
                                  std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;
  const uint64_t bitmap = BitmapOf<Bits>(in);
  if (bitmap == 0) return BlockKind::kZero;
  BlockKind kind = BlockKind::kRaw;
  if constexpr (std::is_same_v<T, double>) {
    if (AreSingle(in)) kind = BlockKind::kSingle;
  } else if constexpr (std::is_signed_v<T>) {
    kind = NarrowestInteger<T>(in);
  }
  const size_t dense = std::min(sizeof(T), BytesOfNarrow(kind)) * kBlockElements;
  if (sizeof(bitmap) + static_cast<size_t>(std::popcount(bitmap)) * sizeof(T) < dense) {
    *out = PutSparse<Bits>(in, bitmap, *out);
    return BlockKind::kSparse;
  }
  if constexpr (std::is_same_v<T, double>) {
    if (kind == BlockKind::kSingle) return PutNarrow<float, T>(in, out), kind;
  } else if constexpr (std::is_signed_v<T>) {
    if (kind == BlockKind::kInt8) return PutNarrow<int8_t, T>(in, out), kind;
    if (kind == BlockKind::kInt16) return PutNarrow<int16_t, T>(in, out), kind;
    if (kind == BlockKind::kInt32) return PutNarrow<int32_t, T>(in, out), kind;
  }
  std::memcpy(*out, in, kBlockElements * sizeof(T));
  *out += kBlockElements * sizeof(T);
  return BlockKind::kRaw;
}

template <typename T>
HWY_INLINE const uint8_t* DecodeOther(BlockKind kind, const uint8_t* in, uint8_t* out) {
  if constexpr (std::is_same_v<T, double>) {
    if (kind == BlockKind::kSingle) return GetNarrow<float, T>(in, out);
  } else if constexpr (std::is_signed_v<T>) {
    if (kind == BlockKind::kInt8) return GetNarrow<int8_t, T>(in, out);
    if (kind == BlockKind::kInt16) return GetNarrow<int16_t, T>(in, out);
    if (kind == BlockKind::kInt32) return GetNarrow<int32_t, T>(in, out);
  }
  return in;
}

// ---- a row of whole blocks ----

struct FloatEncoder {
  static HWY_INLINE BlockKind Encode(const uint8_t* in, uint8_t** out) {
    return FloatBlock(in).Encode(out);
  }
};
template <typename T>
struct OtherEncoder {
  static HWY_INLINE BlockKind Encode(const uint8_t* in, uint8_t** out) {
    return EncodeOther<T>(in, out);
  }
};

template <class Encoder>
HWY_INLINE size_t EncodeRowBy(size_t bytes, const BlockRow& row, uint8_t* kinds, uint8_t** out) {
  uint8_t* end = *out;
  const uint8_t* in = row.in;
  size_t block = row.first;
  for (; block < row.last && end <= row.limit; ++block, in += bytes) {
    SetBlockKind(kinds, block, Encoder::Encode(in, &end));
  }
  *out = end;
  return block;
}

// Encodes the blocks of the row until `*out`, which moves to their end, is beyond its limit.
// Returns the next block.
size_t EncodeRow(DType dtype, const BlockRow& row, uint8_t* kinds, uint8_t** out) {
  const size_t bytes = kBlockElements * SizeOf(dtype);
  switch (dtype) {
    case DType::kFloat32:
      return EncodeRowBy<FloatEncoder>(bytes, row, kinds, out);
    case DType::kFloat64:
      return EncodeRowBy<OtherEncoder<double>>(bytes, row, kinds, out);
    case DType::kInt32:
      return EncodeRowBy<OtherEncoder<int32_t>>(bytes, row, kinds, out);
    case DType::kInt64:
      return EncodeRowBy<OtherEncoder<int64_t>>(bytes, row, kinds, out);
    default:
      return EncodeRowBy<OtherEncoder<uint16_t>>(bytes, row, kinds, out);
  }
}

// memset() takes four times as long for so few bytes.
HWY_INLINE void StoreZeros(uint8_t* out, size_t bytes) {
  const hn::CappedTag<uint8_t, 64> d;
  for (size_t i = 0; i < bytes; i += hn::Lanes(d)) hn::StoreU(hn::Zero(d), d, out + i);
}

// Decodes a whole block; returns its end. May read 16 bytes behind that.
const uint8_t* DecodeBlock(DType dtype, BlockKind kind, const uint8_t* in, uint8_t* out) {
  const size_t bytes = kBlockElements * SizeOf(dtype);
  switch (kind) {
    case BlockKind::kZero:
      StoreZeros(out, bytes);
      return in;
    case BlockKind::kRaw:
      std::memcpy(out, in, bytes);
      return in + bytes;
    case BlockKind::kSparse:
      if (SizeOf(dtype) == 2) return GetSparse<uint16_t>(in, out);
      if (SizeOf(dtype) == 4) return GetSparse<uint32_t>(in, out);
      return GetSparse<uint64_t>(in, out);
    default:
      break;
  }
  switch (dtype) {
    case DType::kFloat32:
      return DecodeFloats(kind, in, out);
    case DType::kFloat64:
      return DecodeOther<double>(kind, in, out);
    case DType::kInt32:
      return DecodeOther<int32_t>(kind, in, out);
    case DType::kInt64:
      return DecodeOther<int64_t>(kind, in, out);
    default:
      return in;
  }
}

// Decodes blocks from number `first` to `last`, as long as `safe_end` is not reached: until there
// every block may be read with 16 bytes behind it. Returns the next block.
size_t DecodeRow(DType dtype, const uint8_t* kinds, size_t first, size_t last,
                 const uint8_t* safe_end, const uint8_t** data, uint8_t* out) {
  const size_t bytes = kBlockElements * SizeOf(dtype);
  const uint8_t* in = *data;
  size_t block = first;
  for (; block < last && in < safe_end; ++block, out += bytes) {
    in = DecodeBlock(dtype, BlockKindAt(kinds, block), in, out);
  }
  *data = in;
  return block;
}

}  // namespace addend::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
