#include "lib/reduce/finite.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/reduce/finite.cc"
#include "hwy/foreach_target.h"  // compiles the search below for every target
//
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace addend::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Elements tested together: most blocks have finite elements only.
constexpr size_t kBlock = 1024;

// T has the size of an element, and `exponent` the bits of its exponent: all set if it is not
// finite.
template <typename T>
size_t Search(const uint8_t* data, size_t elements, T exponent) {
  const hn::ScalableTag<T> d;
  const auto mask = hn::Set(d, exponent);
  const size_t lanes = hn::Lanes(d);
  size_t at = 0;
  for (; at + kBlock <= elements; at += kBlock) {
    auto any = hn::Zero(d);
    for (size_t i = 0; i < kBlock; i += lanes) {
      const auto bits = hn::LoadU(d, reinterpret_cast<const T*>(data + (at + i) * sizeof(T)));
      any = hn::Or(any, hn::VecFromMask(d, hn::Eq(hn::And(bits, mask), mask)));
    }
    if (!hn::AllTrue(d, hn::Eq(any, hn::Zero(d)))) break;
  }
  for (; at < elements; ++at) {
    T bits;
    std::memcpy(&bits, data + at * sizeof(T), sizeof(T));
    if ((bits & exponent) == exponent) break;
  }
  return at;
}

size_t Search16(const uint8_t* data, size_t elements, uint16_t exponent) {
  return Search<uint16_t>(data, elements, exponent);
}
size_t Search32(const uint8_t* data, size_t elements) {
  return Search<uint32_t>(data, elements, 0x7f800000u);
}
size_t Search64(const uint8_t* data, size_t elements) {
  return Search<uint64_t>(data, elements, 0x7ff0000000000000u);
}

}  // namespace addend::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace addend {
namespace {

HWY_EXPORT(Search16);
HWY_EXPORT(Search32);
HWY_EXPORT(Search64);

constexpr uint16_t kFloat16Exponent = 0x7c00;
constexpr uint16_t kBFloat16Exponent = 0x7f80;

size_t Find(DType dtype, const uint8_t* data, size_t elements) {
  switch (dtype) {
    case DType::kFloat32:
      return HWY_DYNAMIC_DISPATCH(Search32)(data, elements);
    case DType::kFloat64:
      return HWY_DYNAMIC_DISPATCH(Search64)(data, elements);
    case DType::kFloat16:
      return HWY_DYNAMIC_DISPATCH(Search16)(data, elements, kFloat16Exponent);
    case DType::kBFloat16:
      return HWY_DYNAMIC_DISPATCH(Search16)(data, elements, kBFloat16Exponent);
    default:
      return elements;
  }
}

}  // namespace

std::optional<size_t> FirstNonFinite(DType dtype, const void* data, size_t elements) {
  const size_t found = Find(dtype, static_cast<const uint8_t*>(data), elements);
  return found < elements ? std::optional(found) : std::nullopt;
}

}  // namespace addend
#endif  // HWY_ONCE
