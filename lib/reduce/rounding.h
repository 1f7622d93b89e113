// Rounds float32 elements onto the grid of a shorter type, in float32 memory: after that the exact
// encodings (block_codec.h) carry them in 2 bytes, or little more than 1. So a lossy type on the
// wire is an arithmetic step of its own, the same wherever a payload travels, and passing a payload
// by pointer gives the same bits as sending it.
//
// Pure functions over memory that the caller owns; any thread; no allocation. The result depends on
// the elements, the settings and the position of each element in its tensor alone: not on the
// machine, nor on the pieces in which a tensor is rounded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "lib/base/wire_format.h"

namespace addend {

// The origin of the random bits of stochastic rounding. The same key gives the same bits, whoever
// rounds, and however often.
uint64_t RoundingKey(std::string_view tensor, uint64_t round, uint32_t rank);
// In place of a rank: the owner's rounding of the sum.
inline constexpr uint32_t kRoundingOfResult = 0xffffffff;

// Rounds `count` elements, of which the first is number `first` of its tensor: a multiple of 64.
// `out` may equal `in`. With kSame it copies.
void RoundToWire(const WireFormat& format, uint64_t key, uint64_t first, size_t count,
                 const float* in, float* out);

}  // namespace addend
