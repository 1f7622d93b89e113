#include "bench/plain_loops.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace addend {
// Defined in plain_loop_kernels.cc.
namespace plain_baseline {
PlainSum Find(DType dtype, size_t inputs, bool past_caches);
}
#if defined(__x86_64__)
namespace plain_avx2 {
PlainSum Find(DType dtype, size_t inputs, bool past_caches);
}
namespace plain_avx512 {
PlainSum Find(DType dtype, size_t inputs, bool past_caches);
}
#endif

std::vector<PlainLoop> PlainSums(DType dtype, size_t inputs) {
  // Every processor with AVX2 also converts float16.
  std::vector<PlainLoop> loops = {{"baseline", plain_baseline::Find(dtype, inputs, false)}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) {
    loops.push_back({"AVX2", plain_avx2::Find(dtype, inputs, false)});
    loops.push_back({"AVX2, non-temporal", plain_avx2::Find(dtype, inputs, true)});
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    loops.push_back({"AVX-512", plain_avx512::Find(dtype, inputs, false)});
    loops.push_back({"AVX-512, non-temporal", plain_avx512::Find(dtype, inputs, true)});
  }
#endif
  std::erase_if(loops, [](const PlainLoop& loop) { return loop.sum == nullptr; });
  return loops;
}

float ReadAll(std::span<const float> values) {
  // Separate sums, so that no addition waits for another.
  constexpr size_t kLanes = 64;
  float sums[kLanes] = {};
  for (size_t i = 0; i + kLanes <= values.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += values[i + lane];
  }
  float total = 0;
  for (const float sum : sums) total += sum;
  return total;
}

void FillAll(std::span<float> values, float value) {
#if defined(__x86_64__)
  const __m128 four = _mm_set1_ps(value);
  for (size_t i = 0; i + 4 <= values.size(); i += 4) _mm_stream_ps(values.data() + i, four);
  _mm_sfence();
#else
  for (float& element : values) element = value;
#endif
}

}  // namespace addend
