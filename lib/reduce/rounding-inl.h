// The rounding kernels, compiled once for every instruction set. Only rounding.cc includes this
// file.
#if defined(ADDEND_LIB_REDUCE_ROUNDING_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ADDEND_LIB_REDUCE_ROUNDING_INL_H_
#undef ADDEND_LIB_REDUCE_ROUNDING_INL_H_
#else
#define ADDEND_LIB_REDUCE_ROUNDING_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "hwy/highway.h"
#include "lib/reduce/block_codec.h"
#include "lib/reduce/rounding.h"

HWY_BEFORE_NAMESPACE();
namespace addend::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using RoundingBits = hn::ScalableTag<uint32_t>;
using RoundingFloats = hn::ScalableTag<float>;
using RoundingInts = hn::ScalableTag<int32_t>;

// 32 random bits for each element: a counter through two rounds of MurmurHash3's finalizer, with a
// half of the key before each.
class RandomBits {
 public:
  RandomBits(uint64_t key, uint64_t first)
      : low_(static_cast<uint32_t>(key)),
        // Another key for every 2^32 elements.
        high_(static_cast<uint32_t>(key >> 32) + static_cast<uint32_t>(first >> 32) * 0x9e3779b9u),
        first_(static_cast<uint32_t>(first)) {}

  // Of the elements from `at` on.
  HWY_INLINE hn::Vec<RoundingBits> At(size_t at) const {
    const RoundingBits d;
    const auto counter = hn::Iota(d, first_ + static_cast<uint32_t>(at));
    return Mixed(hn::Xor(Mixed(hn::Xor(counter, hn::Set(d, low_))), hn::Set(d, high_)));
  }

 private:
  static HWY_INLINE hn::Vec<RoundingBits> Mixed(hn::Vec<RoundingBits> x) {
    const RoundingBits d;
    x = hn::Mul(hn::Xor(x, hn::ShiftRight<16>(x)), hn::Set(d, 0x85ebca6bu));
    x = hn::Mul(hn::Xor(x, hn::ShiftRight<13>(x)), hn::Set(d, 0xc2b2ae35u));
    return hn::Xor(x, hn::ShiftRight<16>(x));
  }

  const uint32_t low_, high_, first_;
};

template <class V>
HWY_INLINE auto IsSpecial(V bits) {  // an infinity or a NaN
  const RoundingBits d;
  return hn::Eq(hn::And(bits, hn::Set(d, 0x7f800000u)), hn::Set(d, 0x7f800000u));
}

// An infinity stays, a NaN becomes the canonical NaN.
template <class V>
HWY_INLINE V Special(V bits) {
  const RoundingBits d;
  const auto nan = hn::Ne(hn::And(bits, hn::Set(d, 0x7fffffu)), hn::Zero(d));
  return hn::IfThenElse(nan, hn::Set(d, 0x7fc00000u), bits);
}

// To a multiple of 2^kBits of the bits: the magnitude's, as the sign is the uppermost bit.
template <int kBits, bool kStochastic, class V>
HWY_INLINE V RoundBits(V bits, V random) {
  const RoundingBits d;
  constexpr uint32_t kMask = (1u << kBits) - 1;
  V add;
  if constexpr (kStochastic) {
    add = hn::And(random, hn::Set(d, kMask));
  } else {
    const auto odd = hn::And(hn::ShiftRight<kBits>(bits), hn::Set(d, 1u));
    add = hn::Add(hn::Set(d, kMask >> 1), odd);
  }
  return hn::AndNot(hn::Set(d, kMask), hn::Add(bits, add));
}

struct ToBFloat16 {
  template <bool kStochastic, class V>
  static HWY_INLINE V Round(V bits, V random) {
    return hn::IfThenElse(IsSpecial(bits), Special(bits), RoundBits<16, kStochastic>(bits, random));
  }
};

struct ToFloat16 {
  template <bool kStochastic, class V>
  static HWY_INLINE V Round(V bits, V random) {
    const RoundingBits d;
    const RoundingFloats df;
    const RoundingInts di;
    const auto magnitude = hn::And(bits, hn::Set(d, 0x7fffffffu));
    const auto sign = hn::Xor(bits, magnitude);
    const auto normal = RoundBits<13, kStochastic>(magnitude, random);
    // Below 2^-14: to a multiple of 2^-24.
    const auto multiple = hn::Mul(hn::BitCast(df, magnitude), hn::Set(df, 0x1p24f));
    hn::Vec<RoundingFloats> whole;
    if constexpr (kStochastic) {
      whole = hn::Floor(hn::Add(multiple, Fraction(random)));
    } else {
      whole = hn::Round(multiple);
    }
    const auto small = hn::BitCast(d, hn::Mul(whole, hn::Set(df, 0x1p-24f)));
    const auto m = hn::BitCast(di, magnitude);
    const auto is_small = hn::RebindMask(d, hn::Lt(m, hn::Set(di, 0x38800000)));
    auto rounded = hn::IfThenElse(is_small, small, normal);
    const auto overflows =
        hn::RebindMask(d, hn::Gt(hn::BitCast(di, rounded), hn::Set(di, 0x477fffff)));
    rounded = hn::IfThenElse(overflows, hn::Set(d, 0x7f800000u), rounded);
    return hn::IfThenElse(IsSpecial(bits), Special(bits), hn::Or(rounded, sign));
  }

  // In [0, 1), of 24 bits.
  template <class V>
  static HWY_INLINE hn::Vec<RoundingFloats> Fraction(V random) {
    const RoundingFloats df;
    const RoundingInts di;
    const auto bits = hn::BitCast(di, hn::ShiftRight<8>(random));
    return hn::Mul(hn::ConvertTo(df, bits), hn::Set(df, 0x1p-24f));
  }
};

// Rounds whole blocks, element by element.
template <class Rounder, bool kStochastic>
HWY_INLINE void RoundElements(uint64_t key, uint64_t first, size_t count, const float* in,
                              float* out) {
  const RoundingBits d;
  const RandomBits random(key, first);
  for (size_t i = 0; i < count; i += hn::Lanes(d)) {
    const auto bits = hn::LoadU(d, reinterpret_cast<const uint32_t*>(in) + i);
    const auto rounded =
        Rounder::template Round<kStochastic>(bits, kStochastic ? random.At(i) : hn::Zero(d));
    hn::StoreU(rounded, d, reinterpret_cast<uint32_t*>(out) + i);
  }
}

// Rounds whole blocks to multiples of the power of two that lets the largest element of a block fit
// into 7 bits, the same that kScaled8 finds.
template <bool kStochastic>
HWY_INLINE void RoundBlocks(uint64_t key, uint64_t first, size_t count, const float* in,
                            float* out) {
  const RoundingBits d;
  const RoundingFloats df;
  const RoundingInts di;
  const RandomBits random(key, first);
  for (size_t block = 0; block < count; block += kBlockElements) {
    auto most = hn::Zero(d);
    for (size_t i = 0; i < kBlockElements; i += hn::Lanes(d)) {
      const auto bits = hn::LoadU(d, reinterpret_cast<const uint32_t*>(in) + block + i);
      most = hn::Max(most, hn::And(bits, hn::Set(d, 0x7fffffffu)));
    }
    const uint32_t exponent = hn::GetLane(hn::MaxOfLanes(d, most)) >> 23;
    if (exponent == 0xff) {
      if (in != out) std::memcpy(out + block, in + block, kBlockElements * sizeof(float));
      continue;
    }
    const uint32_t unit = exponent > 7 ? exponent - 6 : 1;
    const auto scale = hn::BitCast(df, hn::Set(d, unit << 23));
    const auto inverse = hn::BitCast(df, hn::Set(d, (254 - unit) << 23));
    const auto limit = hn::Set(df, 127.0f);
    for (size_t i = 0; i < kBlockElements; i += hn::Lanes(d)) {
      auto q = hn::Mul(hn::LoadU(df, in + block + i), inverse);
      if constexpr (kStochastic) {
        q = hn::Floor(hn::Add(q, ToFloat16::Fraction(random.At(block + i))));
      } else {
        q = hn::Round(q);
      }
      q = hn::Min(hn::Max(q, hn::Neg(limit)), limit);
      // By way of an integer: -0 becomes +0.
      const auto whole = hn::ConvertTo(df, hn::ConvertTo(di, q));
      hn::StoreU(hn::Mul(whole, scale), df, out + block + i);
    }
  }
}

// `count`: whole blocks.
void RoundRow(const WireFormat& format, uint64_t key, uint64_t first, size_t count, const float* in,
              float* out) {
  switch (format.dtype) {
    case WireDType::kBFloat16:
      return format.stochastic ? RoundElements<ToBFloat16, true>(key, first, count, in, out)
                               : RoundElements<ToBFloat16, false>(key, first, count, in, out);
    case WireDType::kFloat16:
      return format.stochastic ? RoundElements<ToFloat16, true>(key, first, count, in, out)
                               : RoundElements<ToFloat16, false>(key, first, count, in, out);
    case WireDType::kInt8:
      return format.stochastic ? RoundBlocks<true>(key, first, count, in, out)
                               : RoundBlocks<false>(key, first, count, in, out);
    case WireDType::kSame:
      if (in != out) std::memcpy(out, in, count * sizeof(float));
      return;
  }
}

}  // namespace addend::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
