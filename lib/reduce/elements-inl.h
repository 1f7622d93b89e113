// The memory layout of the elements of each type, for the vector kernels. Compiled once for every
// instruction set; only kernels-inl.h includes this file.
#if defined(ADDEND_LIB_REDUCE_ELEMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ADDEND_LIB_REDUCE_ELEMENTS_INL_H_
#undef ADDEND_LIB_REDUCE_ELEMENTS_INL_H_
#else
#define ADDEND_LIB_REDUCE_ELEMENTS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace addend::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Each type has kBytes, the size of an element in contributions and results; Load widens elements
// to Acc, Store narrows them. If kStream, stores of whole vectors bypass the caches, and must be
// aligned.

template <bool kStream, class D, class V>
HWY_INLINE void Put(D d, V v, hn::TFromD<D>* p) {
  if constexpr (kStream) {
    const hn::RebindToUnsigned<D> du;
    hn::Stream(hn::BitCast(du, v), du, reinterpret_cast<hn::TFromD<decltype(du)>*>(p));
  } else {
    hn::StoreU(v, d, p);
  }
}

template <typename T>
struct Native {
  using Acc = T;
  static constexpr size_t kBytes = sizeof(T);
  static constexpr bool kPaired = false;
  static constexpr bool kCanStream = true;

  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const uint8_t* p) {
    return hn::LoadU(d, reinterpret_cast<const T*>(p));
  }
  template <bool kStream = false, class D>
  static HWY_INLINE void Store(D d, hn::Vec<D> v, uint8_t* p) {
    Put<kStream>(d, v, reinterpret_cast<T*>(p));
  }
};

// Prefetches the bytes that a later block of this stream needs. The loop turns from stream to
// stream with every block, which defeats the hardware's own prefetching: without this, sums of
// 16-bit types from memory take half as long again. Running past the end of a stream is harmless: a
// prefetch never faults.
HWY_INLINE void PrefetchAhead(const uint8_t* p, size_t block_bytes) {
  constexpr size_t kDistance = 2048, kLine = 64;
  for (size_t i = 0; i < block_bytes; i += kLine) hwy::Prefetch(p + kDistance + i);
}

// A block is four vectors of elements. Each type chooses the order of elements in the lanes, the
// same for loads and stores.
template <class Type, class D, class V>
HWY_INLINE void LoadBlock(D d, const uint8_t* p, V& v0, V& v1, V& v2, V& v3) {
  if constexpr (Type::kPaired) {
    Type::LoadPair(d, p, v0, v1);
    Type::LoadPair(d, p + 2 * hn::Lanes(d) * Type::kBytes, v2, v3);
  } else {
    const size_t bytes = hn::Lanes(d) * Type::kBytes;
    v0 = Type::Load(d, p);
    v1 = Type::Load(d, p + bytes);
    v2 = Type::Load(d, p + 2 * bytes);
    v3 = Type::Load(d, p + 3 * bytes);
  }
}
template <class Type, bool kStream, class D, class V>
HWY_INLINE void StoreBlock(D d, V v0, V v1, V v2, V v3, uint8_t* p) {
  if constexpr (Type::kPaired) {
    Type::template StorePair<kStream>(d, v0, v1, p);
    Type::template StorePair<kStream>(d, v2, v3, p + 2 * hn::Lanes(d) * Type::kBytes);
  } else {
    const size_t bytes = hn::Lanes(d) * Type::kBytes;
    Type::template Store<kStream>(d, v0, p);
    Type::template Store<kStream>(d, v1, p + bytes);
    Type::template Store<kStream>(d, v2, p + 2 * bytes);
    Type::template Store<kStream>(d, v3, p + 3 * bytes);
  }
}

// Loads and stores 16-bit values in the lower halves of 32-bit lanes.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> LoadBits16(D, const uint8_t* p) {
  const hn::Rebind<uint16_t, D> d16;
  return hn::PromoteTo(hn::RebindToUnsigned<D>(),
                       hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p)));
}
template <class D>
HWY_INLINE void StoreBits16(D, hn::Vec<hn::RebindToUnsigned<D>> bits, uint8_t* p) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::RebindToSigned<D> di;
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, bits)), d16, reinterpret_cast<uint16_t*>(p));
}

struct BFloat16 {
  using Acc = float;
  static constexpr size_t kBytes = 2;
  static constexpr bool kPaired = false;
  static constexpr bool kCanStream = false;

  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const uint8_t* p) {
    return hn::BitCast(d, hn::ShiftLeft<16>(LoadBits16(d, p)));
  }
  template <bool kStream = false, class D>
  static HWY_INLINE void Store(D d, hn::Vec<D> v, uint8_t* p) {
    StoreBits16(d, hn::ShiftRight<16>(Rounded(d, v)), p);
  }

 protected:
  // The result is in the upper halves. A NaN must be the canonical NaN: the addition does not
  // change its upper half.
  template <class D>
  static HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> Rounded(D, hn::Vec<D> v) {
    const hn::RebindToUnsigned<D> du;
    const auto bits = hn::BitCast(du, v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    return hn::Add(hn::Add(bits, hn::Set(du, 0x7fff)), odd);
  }
};

// bfloat16 for sums without accumulators in memory: elements of even and of odd index are in
// separate vectors, which takes no shuffles.
struct PairedBFloat16 : BFloat16 {
  static constexpr bool kPaired = true;
  static constexpr bool kCanStream = true;

  template <class D, class V>
  static HWY_INLINE void LoadPair(D d, const uint8_t* p, V& even, V& odd) {
    const hn::RebindToUnsigned<D> du;
    const auto bits = hn::LoadU(du, reinterpret_cast<const uint32_t*>(p));
    even = hn::BitCast(d, hn::ShiftLeft<16>(bits));
    odd = hn::BitCast(d, hn::And(bits, hn::Set(du, 0xffff0000)));
  }
  template <bool kStream, class D, class V>
  static HWY_INLINE void StorePair(D d, V even, V odd, uint8_t* p) {
    const hn::RebindToUnsigned<D> du;
    const auto lower = hn::ShiftRight<16>(Rounded(d, even));
    const auto upper = hn::And(Rounded(d, odd), hn::Set(du, 0xffff0000));
    Put<kStream>(du, hn::Or(lower, upper), reinterpret_cast<uint32_t*>(p));
  }
};

struct Half {
  using Acc = float;
  static constexpr size_t kBytes = 2;

// The conversion instructions of these targets follow IEEE, with denormals, whatever the
// flush-to-zero modes are. Highway's replacement on other targets does not, so there the bits are
// computed as in half.h.
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2) || (HWY_ARCH_ARM_A64 && HWY_TARGET == HWY_NEON)
  static constexpr bool kPaired = true;
  static constexpr bool kCanStream = true;

  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const uint8_t* p) {
    const hn::Rebind<hwy::float16_t, D> d16;
    return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(p)));
  }
  template <bool kStream = false, class D>
  static HWY_INLINE void Store(D d, hn::Vec<D> v, uint8_t* p) {
    const hn::Rebind<uint16_t, D> d16;
    hn::StoreU(Bits(d, v), d16, reinterpret_cast<uint16_t*>(p));
  }
  template <class D, class V>
  static HWY_INLINE void LoadPair(D d, const uint8_t* p, V& lower, V& upper) {
    lower = Load(d, p);
    upper = Load(d, p + hn::Lanes(d) * kBytes);
  }
  template <bool kStream, class D, class V>
  static HWY_INLINE void StorePair(D d, V lower, V upper, uint8_t* p) {
    const hn::Repartition<uint16_t, D> d16;
    if constexpr (kStream) {
      Put<true>(d16, hn::Combine(d16, Bits(d, upper), Bits(d, lower)),
                reinterpret_cast<uint16_t*>(p));
    } else {
      Store(d, lower, p);
      Store(d, upper, p + hn::Lanes(d) * kBytes);
    }
  }

 private:
  template <class D>
  static HWY_INLINE hn::Vec<hn::Rebind<uint16_t, D>> Bits(D, hn::Vec<D> v) {
    const hn::Rebind<hwy::float16_t, D> d16;
    return hn::BitCast(hn::Rebind<uint16_t, D>(), hn::DemoteTo(d16, v));
  }
#else
  static constexpr bool kPaired = false;
  static constexpr bool kCanStream = false;

  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const uint8_t* p) {
    const hn::RebindToUnsigned<D> du;
    const hn::RebindToSigned<D> di;
    const auto half = LoadBits16(d, p);
    const auto magnitude = hn::And(half, hn::Set(du, 0x7fff));
    const auto sign = hn::ShiftLeft<16>(hn::Xor(half, magnitude));
    const auto rebase = hn::Set(du, (127 - 15) << 23);
    const auto normal = hn::Add(hn::ShiftLeft<13>(magnitude), rebase);
    const auto denormal = hn::BitCast(
        du, hn::Mul(hn::ConvertTo(d, hn::BitCast(di, magnitude)), hn::Set(d, 0x1p-24f)));
    const auto is_denormal = hn::Lt(hn::BitCast(di, magnitude), hn::Set(di, 0x400));
    const auto is_special = hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, 0x7bff));
    const auto finite = hn::IfThenElse(hn::RebindMask(du, is_denormal), denormal, normal);
    const auto all = hn::Add(finite, hn::IfThenElseZero(hn::RebindMask(du, is_special), rebase));
    return hn::BitCast(d, hn::Or(all, sign));
  }
  template <bool kStream = false, class D>
  static HWY_INLINE void Store(D d, hn::Vec<D> v, uint8_t* p) {
    const hn::RebindToUnsigned<D> du;
    const hn::RebindToSigned<D> di;
    const auto bits = hn::BitCast(du, v);
    const auto magnitude = hn::And(bits, hn::Set(du, 0x7fffffff));
    const auto sign = hn::ShiftRight<16>(hn::Xor(bits, magnitude));
    const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1));
    const auto normal = hn::ShiftRight<13>(
        hn::Add(hn::Sub(magnitude, hn::Set(du, ((127 - 15) << 23) - 0xfff)), odd));
    const auto shifted = hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5f));
    const auto denormal = hn::Sub(hn::BitCast(du, shifted), hn::Set(du, 0x3f000000));
    const auto is = [&](auto mask) { return hn::RebindMask(du, mask); };
    const auto m = hn::BitCast(di, magnitude);
    auto half = hn::IfThenElse(is(hn::Lt(m, hn::Set(di, 0x38800000))), denormal, normal);
    half = hn::IfThenElse(is(hn::Gt(m, hn::Set(di, 0x477fffff))), hn::Set(du, 0x7c00), half);
    half = hn::IfThenElse(is(hn::Gt(m, hn::Set(di, 0x7f800000))), hn::Set(du, 0x7e00), half);
    StoreBits16(d, hn::Or(half, sign), p);
  }
#endif
};

}  // namespace addend::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
