// Conversions of single float16 and bfloat16 values, given as their bits. Exact with denormals and
// infinities, rounding to nearest even; a NaN becomes the positive quiet NaN without payload when
// it is narrowed.
#pragma once

#include <bit>
#include <cstdint>

namespace addend {

inline constexpr uint16_t kHalfNan = 0x7e00;
inline constexpr uint16_t kBFloat16Nan = 0x7fc0;

inline float HalfToFloat(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16;
  const uint32_t exponent = half >> 10 & 0x1f;
  const uint32_t mantissa = half & 0x3ff;
  if (exponent == 0) {  // zero or denormal: mantissa * 2^-24, a normal float32
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  const uint32_t rebased = exponent == 0x1f ? 0xff : exponent + (127 - 15);
  return std::bit_cast<float>(sign | rebased << 23 | mantissa << 13);
}

inline uint16_t FloatToHalf(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffff;
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  if (magnitude > 0x7f800000) return kHalfNan;
  if (magnitude >= 0x47800000)
    return sign | 0x7c00;  // from 2^16 on; below it the rounding overflows by itself
  if (magnitude <
      0x38800000) {  // below 2^-14: a denormal half. Adding 1/2 rounds at its last bit, 2^-24.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(shifted) - 0x3f000000);
  }
  const uint32_t odd = magnitude >> 13 & 1;
  const uint32_t rounded = magnitude - ((127 - 15) << 23) + 0xfff + odd;
  return sign | static_cast<uint16_t>(rounded >> 13);
}

inline float BFloat16ToFloat(uint16_t value) { return std::bit_cast<float>(uint32_t{value} << 16); }

inline uint16_t FloatToBFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return kBFloat16Nan;
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace addend
