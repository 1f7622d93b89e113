// Keys, and the last block of a partition. The kernels are in rounding-inl.h, which Highway
// compiles once per instruction set by including this file repeatedly.
#include "lib/reduce/rounding.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/reduce/rounding.cc"
#include "hwy/foreach_target.h"  // compiles the kernels below for every target
//
#include <array>
#include <cstring>

#include "hwy/highway.h"
#include "lib/base/mix.h"
#include "lib/reduce/rounding-inl.h"

#if HWY_ONCE
namespace addend {
namespace {

HWY_EXPORT(RoundRow);

}  // namespace

uint64_t RoundingKey(std::string_view tensor, uint64_t round, uint32_t rank) {
  uint64_t key = 0;
  for (const char c : tensor) key = Mix(key ^ static_cast<uint8_t>(c));
  return Mix(Mix(key ^ round) ^ rank);
}

void RoundToWire(const WireFormat& format, uint64_t key, uint64_t first, size_t count,
                 const float* in, float* out) {
  const size_t whole = count / kBlockElements * kBlockElements;
  HWY_DYNAMIC_DISPATCH(RoundRow)(format, key, first, whole, in, out);
  if (whole == count) return;
  // Missing elements are 0: they do not change the others.
  std::array<float, kBlockElements> block{};
  std::memcpy(block.data(), in + whole, (count - whole) * sizeof(float));
  HWY_DYNAMIC_DISPATCH(RoundRow)
  (format, key, first + whole, kBlockElements, block.data(), block.data());
  std::memcpy(out + whole, block.data(), (count - whole) * sizeof(float));
}

}  // namespace addend
#endif  // HWY_ONCE
