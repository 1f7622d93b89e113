// Element types and operations of a push-pull. The numbers travel in frames, in the trainer's
// protocol and in the C ABI (lib/client/addend.h) and never change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace addend {

enum class DType : uint8_t {
  kFloat32 = 0,
  kFloat64 = 1,
  kFloat16 = 2,
  kBFloat16 = 3,
  kInt32 = 4,
  kInt64 = 5,
};
inline constexpr int kDTypes = 6;

// kBroadcast copies the only contribution that is not empty, byte by byte. kAccumulate is
// asynchronous: a contribution is added to the latest value when it arrives, and the answer is the
// new value.
enum class ReduceOp : uint8_t {
  kSum = 0,
  kAverage = 1,
  kMin = 2,
  kMax = 3,
  kBroadcast = 4,
  kAccumulate = 5,
};
inline constexpr int kReduceOps = 6;
// The contributions of a round have a sum, an average, or a least or greatest element.
constexpr bool IsReduction(ReduceOp op) {
  return op != ReduceOp::kBroadcast && op != ReduceOp::kAccumulate;
}

constexpr size_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
    case DType::kInt64:
      return 8;
    case DType::kFloat16:
    case DType::kBFloat16:
      return 2;
    default:
      return 4;
  }
}

// Bytes of an element while it is being summed: fp16 and bf16 accumulate in fp32.
constexpr size_t AccumulatorSizeOf(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBFloat16 ? 4 : SizeOf(dtype);
}

constexpr std::string_view Name(DType dtype) {
  constexpr std::string_view kNames[] = {"float32",  "float64", "float16",
                                         "bfloat16", "int32",   "int64"};
  return kNames[static_cast<int>(dtype)];
}

constexpr std::string_view Name(ReduceOp op) {
  constexpr std::string_view kNames[] = {"sum", "average", "min", "max", "broadcast", "accumulate"};
  return kNames[static_cast<int>(op)];
}

}  // namespace addend
