// The type in which the elements of a float32 tensor travel. The numbers travel in the trainers'
// protocol, and never change.
//
// Standard library only: libaddend.so includes it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lib/base/types.h"

namespace addend {

enum class WireDType : uint8_t {
  kSame = 0,      // as they are
  kBFloat16 = 1,  // NaN: the canonical NaN
  kFloat16 = 2,   // as kBFloat16; larger numbers become infinite
  // Blocks of 64 elements, from the tensor's first on: multiples of a power of two of at most 7
  // bits and a sign (OCP Microscaling's MXINT8, with blocks of 64). A block with an infinity or a
  // NaN stays as it is.
  kInt8 = 3,
};
inline constexpr int kWireDTypes = 4;

// A tensor's type on the wire. Part of its numerics: all nodes agree on it.
struct WireFormat {
  WireDType dtype = WireDType::kSame;
  // Rounds up or down at random, in proportion to the distances, instead of to the nearest (even)
  // number. The expected value is then the element itself.
  bool stochastic = false;

  bool lossy() const { return dtype != WireDType::kSame; }
  friend bool operator==(const WireFormat&, const WireFormat&) = default;
};

// Whether a tensor may have a lossy type on the wire.
constexpr bool MayBeLossy(DType dtype, ReduceOp op) {
  return dtype == DType::kFloat32 && (op == ReduceOp::kSum || op == ReduceOp::kAverage);
}

namespace wire_format {
inline constexpr std::string_view kNames[kWireDTypes] = {"same", "bf16", "fp16", "int8"};
inline constexpr std::string_view kStochastic = " stochastic";
}  // namespace wire_format

// "int8", "bf16 stochastic", "same".
inline std::string ToString(const WireFormat& format) {
  std::string text(wire_format::kNames[static_cast<int>(format.dtype)]);
  if (format.stochastic) text += wire_format::kStochastic;
  return text;
}

// As ToString() writes it; nullopt: unknown.
inline std::optional<WireFormat> WireFormatOf(std::string_view text) {
  WireFormat format;
  if (text.ends_with(wire_format::kStochastic)) {
    format.stochastic = true;
    text.remove_suffix(wire_format::kStochastic.size());
  }
  for (int i = 0; i < kWireDTypes; ++i) {
    if (text != wire_format::kNames[i]) continue;
    format.dtype = static_cast<WireDType>(i);
    if (format.stochastic && !format.lossy()) return std::nullopt;
    return format;
  }
  return std::nullopt;
}

// The numerics of a tensor as its descriptor names them: the reduction tree, and behind it a lossy
// type: "flat", "flat int8 stochastic". A server or scheduler that does not know the text refuses
// the tensor, so that no release changes bits silently.
inline std::string NumericsOf(const WireFormat& format) {
  return format.lossy() ? "flat " + ToString(format) : "flat";
}
// nullopt: unknown to this version. Empty: "flat".
inline std::optional<WireFormat> WireFormatOfNumerics(std::string_view numerics) {
  constexpr std::string_view kTree = "flat";
  if (numerics.empty() || numerics == kTree) return WireFormat();
  if (!numerics.starts_with(kTree) || numerics[kTree.size()] != ' ') return std::nullopt;
  const auto format = WireFormatOf(numerics.substr(kTree.size() + 1));
  return format && format->lossy() ? format : std::nullopt;
}

}  // namespace addend
