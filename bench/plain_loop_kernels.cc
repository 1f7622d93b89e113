// The loops of plain_loops.h. Compiled with -O3 once for every instruction set (CMakeLists.txt),
// whose name is ADDEND_PLAIN_TARGET; so everything but Find() is local to this file.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "bench/plain_loops.h"

#if defined(__x86_64__)
#if !defined(__clang__)  // g++ 12 warns about undefined vectors in its own headers
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#endif

namespace addend::ADDEND_PLAIN_TARGET {
namespace {

struct BFloat16 {
  uint16_t bits;
};

inline float Widen(float value) { return value; }
inline double Widen(double value) { return value; }
inline float Widen(BFloat16 value) {
  const uint32_t bits = uint32_t{value.bits} << 16;
  float wide;
  __builtin_memcpy(&wide, &bits, sizeof(wide));
  return wide;
}

inline void Narrow(float sum, float* out) { *out = sum; }
inline void Narrow(double sum, double* out) { *out = sum; }
inline void Narrow(float sum, BFloat16* out) {
  uint32_t bits;
  __builtin_memcpy(&bits, &sum, sizeof(bits));
  out->bits = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

template <typename T, size_t kInputs>
inline void Sum(T* __restrict out, const T* const* in, size_t begin, size_t elements) {
  for (size_t i = 0; i < elements; ++i) {
    auto sum = Widen(in[0][begin + i]);
    for (size_t j = 1; j < kInputs; ++j) sum += Widen(in[j][begin + i]);
    Narrow(sum, &out[i]);
  }
}

#if defined(__F16C__)
// The compiler does not vectorise the conversions of float16.
struct Half {
  uint16_t bits;
};
#if defined(__AVX512F__)
using Wide = __m512;
inline Wide Load(const Half* p) {
  return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Wide Add(Wide a, Wide b) { return _mm512_add_ps(a, b); }
inline void Store(Wide sum, Half* p) {
  _mm256_store_si256(reinterpret_cast<__m256i*>(p),
                     _mm512_cvtps_ph(sum, _MM_FROUND_TO_NEAREST_INT));
}
#else
using Wide = __m256;
inline Wide Load(const Half* p) {
  return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Wide Add(Wide a, Wide b) { return _mm256_add_ps(a, b); }
inline void Store(Wide sum, Half* p) {
  _mm_store_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(sum, _MM_FROUND_TO_NEAREST_INT));
}
#endif

template <size_t kInputs>
inline void SumHalves(Half* __restrict out, const Half* const* in, size_t begin, size_t elements) {
  for (size_t i = 0; i < elements; i += sizeof(Wide) / sizeof(float)) {
    Wide sum = Load(in[0] + begin + i);
    for (size_t j = 1; j < kInputs; ++j) sum = Add(sum, Load(in[j] + begin + i));
    Store(sum, out + i);
  }
}
template <>
inline void Sum<Half, 2>(Half* __restrict out, const Half* const* in, size_t begin, size_t count) {
  SumHalves<2>(out, in, begin, count);
}
template <>
inline void Sum<Half, 4>(Half* __restrict out, const Half* const* in, size_t begin, size_t count) {
  SumHalves<4>(out, in, begin, count);
}
template <>
inline void Sum<Half, 8>(Half* __restrict out, const Half* const* in, size_t begin, size_t count) {
  SumHalves<8>(out, in, begin, count);
}
#endif

template <typename T, size_t kInputs>
void Cached(void* out, const void* const* inputs, size_t elements) {
  const T* in[kInputs];
  for (size_t j = 0; j < kInputs; ++j) in[j] = static_cast<const T*>(inputs[j]);
  Sum<T, kInputs>(static_cast<T*>(out), in, 0, elements);
}

#if defined(__AVX2__)
// Sums pieces that stay in the first-level cache, and stores them past the other caches.
template <typename T, size_t kInputs>
void PastCaches(void* out, const void* const* inputs, size_t elements) {
  constexpr size_t kPiece = 4096 / sizeof(T), kStep = 32 / sizeof(T);
  alignas(64) T piece[kPiece];
  const T* in[kInputs];
  for (size_t j = 0; j < kInputs; ++j) in[j] = static_cast<const T*>(inputs[j]);
  for (size_t i = 0; i < elements; i += kPiece) {
    const size_t count = elements - i < kPiece ? elements - i : kPiece;
    Sum<T, kInputs>(piece, in, i, count);
    T* const to = static_cast<T*>(out) + i;
    for (size_t e = 0; e < count; e += kStep) {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to + e),
                          _mm256_load_si256(reinterpret_cast<const __m256i*>(piece + e)));
    }
  }
  _mm_sfence();
}
#else
template <typename T, size_t kInputs>
constexpr PlainSum PastCaches = nullptr;
#endif

template <typename T>
PlainSum FindFor(size_t inputs, bool past_caches) {
  if (inputs == 2) return past_caches ? PastCaches<T, 2> : Cached<T, 2>;
  if (inputs == 4) return past_caches ? PastCaches<T, 4> : Cached<T, 4>;
  return past_caches ? PastCaches<T, 8> : Cached<T, 8>;
}

}  // namespace

// Returns null if there is no such loop.
PlainSum Find(DType dtype, size_t inputs, bool past_caches) {
  switch (dtype) {
    case DType::kFloat32:
      return FindFor<float>(inputs, past_caches);
    case DType::kFloat64:
      return FindFor<double>(inputs, past_caches);
    case DType::kBFloat16:
      return FindFor<BFloat16>(inputs, past_caches);
#if defined(__F16C__)
    case DType::kFloat16:
      return FindFor<Half>(inputs, past_caches);
#endif
    default:
      return nullptr;
  }
}

}  // namespace addend::ADDEND_PLAIN_TARGET
