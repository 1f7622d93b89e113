// The copies between the caller's memory and the segments.
#include "lib/client/copy.h"

#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace addend::client {
namespace {

#ifdef __SSE2__
constexpr size_t kLine = 64;

// `to` is aligned to a line; `bytes` is a multiple of the line's size.
void CopyPastCaches(std::byte* to, const std::byte* from, size_t bytes) {
  for (size_t at = 0; at < bytes; at += kLine) {
    const auto* const in = reinterpret_cast<const __m128i*>(from + at);
    auto* const out = reinterpret_cast<__m128i*>(to + at);
    const __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1);
    const __m128i c = _mm_loadu_si128(in + 2), d = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
  }
  _mm_sfence();  // streaming stores are not ordered with other stores
}
#endif

}  // namespace

void Copy(void* to, const void* from, size_t bytes) {
#ifdef __SSE2__
  if (bytes >= kPastCachesBytes) {
    auto* out = static_cast<std::byte*>(to);
    const auto* in = static_cast<const std::byte*>(from);
    const size_t head = (kLine - reinterpret_cast<uintptr_t>(out) % kLine) % kLine;
    const size_t body = (bytes - head) / kLine * kLine;
    std::memcpy(out, in, head);
    CopyPastCaches(out + head, in + head, body);
    std::memcpy(out + head + body, in + head + body, bytes - head - body);
    return;
  }
#endif
  std::memcpy(to, from, bytes);
}

CopyFn CopyAtRate(double bytes_per_s) {
  if (bytes_per_s <= 0) return Copy;
  return [bytes_per_s](void* to, const void* from, size_t bytes) {
    const auto began = std::chrono::steady_clock::now();
    Copy(to, from, bytes);
    const std::chrono::duration<double> least(static_cast<double>(bytes) / bytes_per_s);
    std::this_thread::sleep_until(began + least);
  };
}

}  // namespace addend::client
