// The arithmetic of sums on the device, element by element, the same source for GPU and CPU: bit
// for bit the result of lib/reduce for a node's contributions (docs/architecture.md, "Numerics").
// Compiled without contraction to FMA and without flushing denormals. C++ for nvcc and g++.
#pragma once

#include <cstdint>
#include <cstring>

#include "lib/base/types.h"

#ifdef __CUDACC__
#define ADDEND_HOST_DEVICE __host__ __device__
#else
#define ADDEND_HOST_DEVICE
#endif

namespace addend::client::cuda {

template <typename To, typename From>
ADDEND_HOST_DEVICE inline To BitsAs(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

// ---- Elements: types in memory (Stored) and in sums (Accumulated) ----

template <typename T>
struct Native {
  using Stored = T;
  using Accumulated = T;
  ADDEND_HOST_DEVICE static T Widen(T value) { return value; }
  ADDEND_HOST_DEVICE static T Narrow(T value) { return value; }
};

// A NaN becomes the positive quiet NaN without payload.
template <typename T, typename Bits, Bits kNaN>
struct NativeFloat : Native<T> {
  ADDEND_HOST_DEVICE static T Narrow(T value) { return value != value ? BitsAs<T>(kNaN) : value; }
};

struct Float16 {
  using Stored = uint16_t;
  using Accumulated = float;

  ADDEND_HOST_DEVICE static float Widen(uint16_t half) {
    const uint32_t sign = uint32_t{half & 0x8000u} << 16;
    const uint32_t exponent = half >> 10 & 0x1f;
    const uint32_t mantissa = half & 0x3ff;
    if (exponent == 0) {  // zero or denormal: mantissa * 2^-24, a normal float32
      const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
      return BitsAs<float>(BitsAs<uint32_t>(magnitude) | sign);
    }
    const uint32_t rebased = exponent == 0x1f ? 0xff : exponent + (127 - 15);
    return BitsAs<float>(sign | rebased << 23 | mantissa << 13);
  }

  // Rounds to nearest even.
  ADDEND_HOST_DEVICE static uint16_t Narrow(float value) {
    const uint32_t bits = BitsAs<uint32_t>(value);
    const uint32_t magnitude = bits & 0x7fffffff;
    const uint32_t sign = bits >> 16 & 0x8000;
    if (magnitude > 0x7f800000) return 0x7e00;
    // Infinite from 2^16 on; below 2^16 the rounding overflows by itself.
    if (magnitude >= 0x47800000) return static_cast<uint16_t>(sign | 0x7c00);
    // Below 2^-14: a denormal half. Adding 1/2 rounds at its last bit, 2^-24.
    if (magnitude < 0x38800000) {
      const float shifted = BitsAs<float>(magnitude) + 0.5f;
      return static_cast<uint16_t>(sign | (BitsAs<uint32_t>(shifted) - 0x3f000000));
    }
    const uint32_t odd = magnitude >> 13 & 1;
    const uint32_t rounded = magnitude - ((127 - 15) << 23) + 0xfff + odd;
    return static_cast<uint16_t>(sign | rounded >> 13);
  }
};

struct BFloat16 {
  using Stored = uint16_t;
  using Accumulated = float;

  ADDEND_HOST_DEVICE static float Widen(uint16_t value) {
    return BitsAs<float>(uint32_t{value} << 16);
  }
  // Rounds to nearest even.
  ADDEND_HOST_DEVICE static uint16_t Narrow(float value) {
    const uint32_t bits = BitsAs<uint32_t>(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fc0;
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
};

using Float32 = NativeFloat<float, uint32_t, 0x7fc00000u>;
using Float64 = NativeFloat<double, uint64_t, 0x7ff8000000000000u>;

// ---- Operations: combine an accumulator with the next contribution ----

struct Add {
  ADDEND_HOST_DEVICE static float Apply(float sum, float next) { return sum + next; }
  ADDEND_HOST_DEVICE static double Apply(double sum, double next) { return sum + next; }
  // Integers wrap.
  ADDEND_HOST_DEVICE static int32_t Apply(int32_t sum, int32_t next) {
    return static_cast<int32_t>(static_cast<uint32_t>(sum) + static_cast<uint32_t>(next));
  }
  ADDEND_HOST_DEVICE static int64_t Apply(int64_t sum, int64_t next) {
    return static_cast<int64_t>(static_cast<uint64_t>(sum) + static_cast<uint64_t>(next));
  }
};

// A NaN wins and stays; of equal values (-0.0, +0.0) the earlier value stays.
struct Least {
  template <typename T>
  ADDEND_HOST_DEVICE static T Apply(T least, T next) {
    return next < least || next != next ? next : least;
  }
};
struct Greatest {
  template <typename T>
  ADDEND_HOST_DEVICE static T Apply(T greatest, T next) {
    return next > greatest || next != next ? next : greatest;
  }
};

// ---- Runtime values to types: visit(Element(), Operation()) ----

template <class Element, class Visitor>
auto VisitOperation(ReduceOp op, const Visitor& visit) {
  switch (op) {
    case ReduceOp::kMin:
      return visit(Element(), Least());
    case ReduceOp::kMax:
      return visit(Element(), Greatest());
    default:
      return visit(Element(), Add());
  }
}

template <class Visitor>
auto VisitSum(DType dtype, ReduceOp op, const Visitor& visit) {
  switch (dtype) {
    case DType::kFloat64:
      return VisitOperation<Float64>(op, visit);
    case DType::kFloat16:
      return VisitOperation<Float16>(op, visit);
    case DType::kBFloat16:
      return VisitOperation<BFloat16>(op, visit);
    case DType::kInt32:
      return VisitOperation<Native<int32_t>>(op, visit);
    case DType::kInt64:
      return VisitOperation<Native<int64_t>>(op, visit);
    default:
      return VisitOperation<Float32>(op, visit);
  }
}

}  // namespace addend::client::cuda
