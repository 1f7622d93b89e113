// The type in which the elements of a float32 tensor travel. The numbers travel in the trainers'
// protocol, and never change.
//
// Standard library only: libaddend.so includes it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lib/base/sum_tree.h"
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

// The numerics of a tensor. Its descriptor names them: the order of summation, and behind it a
// lossy type: "flat", "tree8", "flat int8 stochastic". A server or scheduler that does not know the
// text refuses the tensor, so that no release changes bits silently.
struct Numerics {
  // The tree of sum_tree.h has several levels: "tree8". With a single level it is the order of the
  // nodes, and keeps its former name.
  bool tree = false;
  WireFormat wire;

  friend bool operator==(const Numerics&, const Numerics&) = default;
};

// Of a tensor in a job of so many nodes.
inline Numerics NumericsIn(uint32_t nodes, const WireFormat& wire) {
  return {SumLevels(nodes) > 1, wire};
}
inline std::string ToString(const Numerics& numerics) {
  const std::string order = numerics.tree ? "tree8" : "flat";
  return numerics.wire.lossy() ? order + " " + ToString(numerics.wire) : order;
}
// As ToString() writes it; empty: "flat". nullopt: unknown.
inline std::optional<Numerics> NumericsOf(std::string_view text) {
  const size_t space = text.find(' ');
  const std::string_view order = text.substr(0, space);
  if (!text.empty() && order != "flat" && order != "tree8") return std::nullopt;
  Numerics numerics{.tree = order == "tree8", .wire = {}};
  if (space == std::string_view::npos) return numerics;
  const auto wire = WireFormatOf(text.substr(space + 1));
  if (!wire || !wire->lossy()) return std::nullopt;
  numerics.wire = *wire;
  return numerics;
}

}  // namespace addend
