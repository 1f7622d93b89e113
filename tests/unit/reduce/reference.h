// An independent, slow and simple formulation of the numerics, element by element. It shares no
// code with lib/reduce.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "lib/base/types.h"

namespace addend::reference {

// A finite or infinite value of a binary format with `mantissa` stored bits and exponent bias
// `bias`, or NaN.
inline double Decode(uint32_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
  const int exponent = static_cast<int>(bits >> mantissa_bits & ((1u << exponent_bits) - 1));
  const double sign = bits >> (exponent_bits + mantissa_bits) & 1 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa ? std::numeric_limits<double>::quiet_NaN()
                    : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign *
         std::ldexp(mantissa + std::ldexp(1.0, mantissa_bits), exponent - bias - mantissa_bits);
}

// Rounds to nearest, ties to even; NaN becomes the positive quiet NaN.
inline uint32_t Encode(double value, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const uint32_t infinity = ((1u << exponent_bits) - 1) << mantissa_bits;
  if (std::isnan(value)) return infinity | 1u << (mantissa_bits - 1);
  const uint32_t sign = std::signbit(value) ? 1u << (exponent_bits + mantissa_bits) : 0;
  const double magnitude = std::fabs(value);
  if (magnitude == 0) return sign;
  if (std::isinf(magnitude)) return sign | infinity;
  const int exponent = std::max(std::ilogb(magnitude), 1 - bias);
  // nearbyint rounds ties to even; the significand counts units of the last place.
  const double significand = std::nearbyint(std::ldexp(magnitude, mantissa_bits - exponent));
  const double hidden = std::ldexp(1.0, mantissa_bits);
  // A significand that reached the next power of two carries into the exponent by the addition.
  uint64_t bits = static_cast<uint64_t>(significand);
  if (significand >= hidden) {
    bits = (static_cast<uint64_t>(exponent + bias) << mantissa_bits) + bits -
           (uint64_t{1} << mantissa_bits);
  }
  return sign | static_cast<uint32_t>(std::min<uint64_t>(bits, infinity));
}

template <typename T>
T Combine(ReduceOp op, T acc, T in) {
  if constexpr (std::numeric_limits<T>::is_integer) {
    using U = std::make_unsigned_t<T>;
    if (op == ReduceOp::kMin) return in < acc ? in : acc;
    if (op == ReduceOp::kMax) return in > acc ? in : acc;
    return static_cast<T>(static_cast<U>(acc) + static_cast<U>(in));
  } else {
    if (op == ReduceOp::kSum || op == ReduceOp::kAverage) return acc + in;
    if (std::isnan(acc)) return acc;
    if (std::isnan(in)) return in;
    if (op == ReduceOp::kMin) return in < acc ? in : acc;
    return in > acc ? in : acc;
  }
}

template <typename T>
T Load(const std::vector<uint8_t>& bytes, size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

template <typename T, typename Read, typename Write>
void ReduceAs(ReduceOp op, const std::vector<std::vector<uint8_t>>& inputs, size_t elements,
              uint32_t divisor, Read read, Write write) {
  for (size_t i = 0; i < elements; ++i) {
    T acc = read(inputs[0], i);
    for (size_t j = 1; j < inputs.size(); ++j) acc = Combine<T>(op, acc, read(inputs[j], i));
    if (op == ReduceOp::kAverage) {
      if constexpr (std::numeric_limits<T>::is_integer) {
        acc = static_cast<T>(acc / static_cast<int64_t>(divisor));
      } else {
        acc = acc / static_cast<T>(divisor);
      }
    }
    if constexpr (!std::numeric_limits<T>::is_integer) {
      if (std::isnan(acc)) acc = std::copysign(std::numeric_limits<T>::quiet_NaN(), T{1});
    }
    write(i, acc);
  }
}

// The result of a push-pull of `inputs`, as bytes.
inline std::vector<uint8_t> Reduce(DType dtype, ReduceOp op,
                                   const std::vector<std::vector<uint8_t>>& inputs, size_t elements,
                                   uint32_t divisor) {
  std::vector<uint8_t> out(elements * SizeOf(dtype));
  const auto write = [&](size_t i, auto value) {
    std::memcpy(out.data() + i * sizeof(value), &value, sizeof(value));
  };
  const auto sixteen = [&](int exponent_bits, int mantissa_bits) {
    ReduceAs<float>(
        op, inputs, elements, divisor,
        [&](const auto& bytes, size_t i) {
          return static_cast<float>(Decode(Load<uint16_t>(bytes, i), exponent_bits, mantissa_bits));
        },
        [&](size_t i, float value) {
          write(i, static_cast<uint16_t>(Encode(value, exponent_bits, mantissa_bits)));
        });
  };
  switch (dtype) {
    case DType::kFloat32:
      ReduceAs<float>(op, inputs, elements, divisor, Load<float>, write);
      break;
    case DType::kFloat64:
      ReduceAs<double>(op, inputs, elements, divisor, Load<double>, write);
      break;
    case DType::kInt32:
      ReduceAs<int32_t>(op, inputs, elements, divisor, Load<int32_t>, write);
      break;
    case DType::kInt64:
      ReduceAs<int64_t>(op, inputs, elements, divisor, Load<int64_t>, write);
      break;
    case DType::kFloat16:
      sixteen(5, 10);
      break;
    case DType::kBFloat16:
      sixteen(8, 7);
      break;
  }
  return out;
}

}  // namespace addend::reference
