// Blocks of few elements that are not +0, compiled once for every instruction set. Only
// blocks-inl.h and float_blocks-inl.h include this file.
#if defined(ADDEND_LIB_REDUCE_SPARSE_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ADDEND_LIB_REDUCE_SPARSE_BLOCKS_INL_H_
#undef ADDEND_LIB_REDUCE_SPARSE_BLOCKS_INL_H_
#else
#define ADDEND_LIB_REDUCE_SPARSE_BLOCKS_INL_H_
#endif

#include <bit>
#include <cstring>

#include "hwy/highway.h"
#include "lib/reduce/block_codec.h"

HWY_BEFORE_NAMESPACE();
namespace addend::HWY_NAMESPACE {

template <typename T>
HWY_INLINE uint64_t BitmapOf(const uint8_t* in) {
  uint64_t bitmap = 0;
  for (size_t i = 0; i < kBlockElements; ++i) {
    T bits;
    std::memcpy(&bits, in + i * sizeof(T), sizeof(T));
    bitmap |= uint64_t{bits != 0} << i;
  }
  return bitmap;
}

// Writes the elements of `bitmap`, of `size` bytes each. Returns the end.
template <typename T>
HWY_INLINE uint8_t* PutSparse(const uint8_t* in, uint64_t bitmap, uint8_t* out) {
  std::memcpy(out, &bitmap, sizeof(bitmap));
  out += sizeof(bitmap);
  for (; bitmap != 0; bitmap &= bitmap - 1) {
    std::memcpy(out, in + static_cast<size_t>(std::countr_zero(bitmap)) * sizeof(T), sizeof(T));
    out += sizeof(T);
  }
  return out;
}

template <typename T>
HWY_INLINE const uint8_t* GetSparse(const uint8_t* in, uint8_t* out) {
  uint64_t bitmap;
  std::memcpy(&bitmap, in, sizeof(bitmap));
  in += sizeof(bitmap);
  std::memset(out, 0, kBlockElements * sizeof(T));
  for (; bitmap != 0; bitmap &= bitmap - 1) {
    std::memcpy(out + static_cast<size_t>(std::countr_zero(bitmap)) * sizeof(T), in, sizeof(T));
    in += sizeof(T);
  }
  return in;
}

}  // namespace addend::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
