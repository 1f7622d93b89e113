// Blocks of float32 elements, compiled once for every instruction set. Only blocks-inl.h includes
// this file.
#if defined(ADDEND_LIB_REDUCE_FLOAT_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ADDEND_LIB_REDUCE_FLOAT_BLOCKS_INL_H_
#undef ADDEND_LIB_REDUCE_FLOAT_BLOCKS_INL_H_
#else
#define ADDEND_LIB_REDUCE_FLOAT_BLOCKS_INL_H_
#endif

#include <cstring>

#include "hwy/highway.h"
#include "lib/reduce/block_row.h"
#include "lib/reduce/elements-inl.h"
#include "lib/reduce/sparse_blocks-inl.h"

HWY_BEFORE_NAMESPACE();
namespace addend::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatBits = hn::ScalableTag<uint32_t>;

template <class V>
HWY_INLINE bool IsZero(FloatBits d, V v) {
  return hn::AllTrue(d, hn::Eq(v, hn::Zero(d)));
}

// Of a block: without, and with, the lowest byte of each element. Vectors of 16 bytes write, and
// read, 4 bytes behind the end of the shorter form.
#if HWY_TARGET == HWY_SCALAR
HWY_INLINE void DropLowBytes(const uint8_t* in, uint8_t* out) {
  for (size_t i = 0; i < kBlockElements; ++i) std::memcpy(out + 3 * i, in + 4 * i + 1, 3);
}
HWY_INLINE void AddLowBytes(const uint8_t* in, uint8_t* out) {
  for (size_t i = 0; i < kBlockElements; ++i) {
    out[4 * i] = 0;
    std::memcpy(out + 4 * i + 1, in + 3 * i, 3);
  }
}
#else
HWY_INLINE void DropLowBytes(const uint8_t* in, uint8_t* out) {
  const hn::FixedTag<uint8_t, 16> d;
  HWY_ALIGN static constexpr uint8_t kUpper[16] = {1,  2,  3,  5,  6,  7,  9,  10,
                                                   11, 13, 14, 15, 15, 15, 15, 15};
  const auto upper = hn::Load(d, kUpper);
  for (size_t i = 0; i < kBlockElements; i += 4) {
    hn::StoreU(hn::TableLookupBytes(hn::LoadU(d, in + 4 * i), upper), d, out + 3 * i);
  }
}
HWY_INLINE void AddLowBytes(const uint8_t* in, uint8_t* out) {
  const hn::FixedTag<uint8_t, 16> d;
  HWY_ALIGN static constexpr uint8_t kSpread[16] = {0x80, 0, 1, 2, 0x80, 3, 4,  5,
                                                    0x80, 6, 7, 8, 0x80, 9, 10, 11};
  const auto spread = hn::Load(d, kSpread);
  for (size_t i = 0; i < kBlockElements; i += 4) {
    hn::StoreU(hn::TableLookupBytesOr0(hn::LoadU(d, in + 3 * i), spread), d, out + 4 * i);
  }
}
#endif

// A block of float32 elements, as their bits.
class FloatBlock {
 public:
  explicit HWY_INLINE FloatBlock(const uint8_t* in) : in_(in) {}

  // Appends the block to `*out`, in the fewest bytes.
  HWY_INLINE BlockKind Encode(uint8_t** out) const {
    const FloatBits d;
    auto any = hn::Zero(d), all = hn::Set(d, ~0u);
    for (size_t i = 0; i < kBlockElements; i += hn::Lanes(d)) {
      const auto v = At(d, i);
      any = hn::Or(any, v);
      all = hn::And(all, v);
    }
    if (IsZero(d, any)) return BlockKind::kZero;
    if (HasOneMagnitude(d, any, all)) return PutSigns(out);
    const bool upper16 = IsZero(d, hn::And(any, hn::Set(d, 0xffff)));
    const size_t filled = CountFilled(d);
    const size_t sparse = sizeof(uint64_t) + filled * sizeof(float);
    if (upper16) {
      if (sparse < kBlockElements && filled < kBlockElements / 4) return Sparse(out);
      if (PutScaled8(out)) return BlockKind::kScaled8;
      if (sparse < 2 * kBlockElements) return Sparse(out);
      return PutUpper16(d, out);
    }
    if (sparse < 2 * kBlockElements) return Sparse(out);
    if (IsZero(d, hn::And(any, hn::Set(d, 0x1fff))) && PutHalf(out)) return BlockKind::kHalf;
    const bool upper24 = IsZero(d, hn::And(any, hn::Set(d, 0xff)));
    if (sparse < (upper24 ? 3 : 4) * kBlockElements) return Sparse(out);
    if (upper24) return PutUpper24(out);
    std::memcpy(*out, in_, kBlockElements * sizeof(float));
    *out += kBlockElements * sizeof(float);
    return BlockKind::kRaw;
  }

 private:
  HWY_INLINE hn::Vec<FloatBits> At(FloatBits d, size_t i) const {
    return hn::LoadU(d, reinterpret_cast<const uint32_t*>(in_) + i);
  }

  template <class V>
  static HWY_INLINE bool HasOneMagnitude(FloatBits d, V any, V all) {
    const auto magnitude = hn::Set(d, 0x7fffffffu);
    const auto first = hn::Set(d, hn::GetLane(any) & 0x7fffffffu);
    const auto differs =
        hn::Or(hn::Xor(hn::And(any, magnitude), first), hn::Xor(hn::And(all, magnitude), first));
    return IsZero(d, differs);
  }

  HWY_INLINE size_t CountFilled(FloatBits d) const {
    size_t filled = 0;
    for (size_t i = 0; i < kBlockElements; i += hn::Lanes(d)) {
      filled += hn::CountTrue(d, hn::Ne(At(d, i), hn::Zero(d)));
    }
    return filled;
  }

  HWY_NOINLINE BlockKind Sparse(uint8_t** out) const {
    *out = PutSparse<uint32_t>(in_, BitmapOf<uint32_t>(in_), *out);
    return BlockKind::kSparse;
  }

  HWY_NOINLINE BlockKind PutSigns(uint8_t** out) const {
    uint64_t signs = 0;
    uint32_t bits = 0;
    for (size_t i = 0; i < kBlockElements; ++i) {
      std::memcpy(&bits, in_ + i * sizeof(bits), sizeof(bits));
      signs |= uint64_t{bits >> 31} << i;
    }
    bits &= 0x7fffffff;
    std::memcpy(*out, &signs, sizeof(signs));
    std::memcpy(*out + sizeof(signs), &bits, sizeof(bits));
    *out += sizeof(signs) + sizeof(bits);
    return BlockKind::kSigns;
  }

  HWY_INLINE BlockKind PutUpper16(FloatBits d, uint8_t** out) const {
    const hn::RebindToFloat<FloatBits> df;
    for (size_t i = 0; i < kBlockElements; i += hn::Lanes(d)) {
      StoreBits16(df, hn::ShiftRight<16>(At(d, i)), *out + 2 * i);
    }
    *out += 2 * kBlockElements;
    return BlockKind::kUpper16;
  }

  HWY_INLINE BlockKind PutUpper24(uint8_t** out) const {
    DropLowBytes(in_, *out);
    *out += 3 * kBlockElements;
    return BlockKind::kUpper24;
  }

  // False: an element is no float16 number (or NaN), and `*out` is as before.
  HWY_NOINLINE bool PutHalf(uint8_t** out) const {
    const FloatBits d;
    const hn::RebindToFloat<FloatBits> df;
    const hn::RebindToSigned<FloatBits> di;
    for (size_t i = 0; i < kBlockElements; i += hn::Lanes(d)) {
      const auto bits = At(d, i);
      const auto magnitude = hn::And(bits, hn::Set(d, 0x7fffffffu));
      const auto sign = hn::ShiftRight<16>(hn::Xor(bits, magnitude));
      // Below 2^-14: a multiple of 2^-24, or no float16 number.
      const auto f = hn::BitCast(df, magnitude);
      const auto multiple = hn::ConvertTo(di, hn::Mul(f, hn::Set(df, 0x1p24f)));
      const auto again = hn::Mul(hn::ConvertTo(df, multiple), hn::Set(df, 0x1p-24f));
      const auto m = hn::BitCast(di, magnitude);
      const auto small = hn::Lt(m, hn::Set(di, 0x38800000));
      const auto infinite = hn::Eq(m, hn::Set(di, 0x7f800000));
      const auto normal = hn::ShiftRight<13>(hn::Sub(magnitude, hn::Set(d, 0x38000000u)));
      const auto fits =
          hn::Or(hn::And(small, hn::Eq(hn::BitCast(di, again), m)),
                 hn::Or(infinite, hn::AndNot(small, hn::Lt(m, hn::Set(di, 0x47800000)))));
      if (!hn::AllTrue(di, fits)) return false;
      auto half = hn::IfThenElse(hn::RebindMask(d, small), hn::BitCast(d, multiple), normal);
      half = hn::IfThenElse(hn::RebindMask(d, infinite), hn::Set(d, 0x7c00u), half);
      StoreBits16(df, hn::Or(half, sign), *out + 2 * i);
    }
    *out += 2 * kBlockElements;
    return true;
  }

  // False: the elements are not small multiples of a power of two, and `*out` is as before.
  HWY_NOINLINE bool PutScaled8(uint8_t** out) const {
    const FloatBits d;
    const hn::RebindToFloat<FloatBits> df;
    const hn::RebindToSigned<FloatBits> di;
    auto most = hn::Zero(d);
    for (size_t i = 0; i < kBlockElements; i += hn::Lanes(d)) {
      most = hn::Max(most, hn::And(At(d, i), hn::Set(d, 0x7fffffffu)));
    }
    const uint32_t exponent = hn::GetLane(hn::MaxOfLanes(d, most)) >> 23;
    if (exponent == 0xff) return false;
    const uint32_t unit = exponent > 7 ? exponent - 6 : 1;
    const auto scale = hn::BitCast(df, hn::Set(d, unit << 23));
    const auto inverse = hn::BitCast(df, hn::Set(d, (254 - unit) << 23));
    const hn::Rebind<int8_t, FloatBits> d8;
    int8_t* const bytes = reinterpret_cast<int8_t*>(*out + 1);
    for (size_t i = 0; i < kBlockElements; i += hn::Lanes(d)) {
      const auto v = At(d, i);
      const auto q = hn::ConvertTo(di, hn::Mul(hn::BitCast(df, v), inverse));
      const auto again = hn::BitCast(d, hn::Mul(hn::ConvertTo(df, q), scale));
      if (!hn::AllTrue(d, hn::Eq(again, v))) return false;
      hn::StoreU(hn::DemoteTo(d8, q), d8, bytes + i);
    }
    **out = static_cast<uint8_t>(unit);
    *out += 1 + kBlockElements;
    return true;
  }

  const uint8_t* const in_;
};

HWY_INLINE const uint8_t* DecodeFloats(BlockKind kind, const uint8_t* in, uint8_t* out) {
  const FloatBits d;
  const hn::RebindToFloat<FloatBits> df;
  uint32_t* const bits = reinterpret_cast<uint32_t*>(out);
  switch (kind) {
    case BlockKind::kUpper16:
      for (size_t i = 0; i < kBlockElements; i += hn::Lanes(d)) {
        hn::StoreU(hn::ShiftLeft<16>(LoadBits16(df, in + 2 * i)), d, bits + i);
      }
      return in + 2 * kBlockElements;
    case BlockKind::kHalf:
      for (size_t i = 0; i < kBlockElements; i += hn::Lanes(d)) {
        hn::StoreU(hn::BitCast(d, Half::Load(df, in + 2 * i)), d, bits + i);
      }
      return in + 2 * kBlockElements;
    case BlockKind::kUpper24:
      AddLowBytes(in, out);
      return in + 3 * kBlockElements;
    case BlockKind::kScaled8: {
      const hn::RebindToSigned<FloatBits> di;
      const hn::Rebind<int8_t, FloatBits> d8;
      const auto scale = hn::BitCast(df, hn::Set(d, uint32_t{*in} << 23));
      const int8_t* const bytes = reinterpret_cast<const int8_t*>(in + 1);
      for (size_t i = 0; i < kBlockElements; i += hn::Lanes(d)) {
        const auto q = hn::PromoteTo(di, hn::LoadU(d8, bytes + i));
        hn::StoreU(hn::BitCast(d, hn::Mul(hn::ConvertTo(df, q), scale)), d, bits + i);
      }
      return in + 1 + kBlockElements;
    }
    case BlockKind::kSigns: {
      uint64_t signs;
      uint32_t magnitude;
      std::memcpy(&signs, in, sizeof(signs));
      std::memcpy(&magnitude, in + sizeof(signs), sizeof(magnitude));
      for (size_t i = 0; i < kBlockElements; ++i) {
        const uint32_t element = magnitude | static_cast<uint32_t>(signs >> i & 1) << 31;
        std::memcpy(out + i * sizeof(element), &element, sizeof(element));
      }
      return in + sizeof(signs) + sizeof(magnitude);
    }
    default:
      return in;
  }
}

}  // namespace addend::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
