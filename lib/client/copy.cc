// The copies between the caller's memory and the segments.
#include "lib/client/copy.h"

#include <chrono>
#include <cstring>
#include <thread>

#include "lib/base/copy_past_caches.h"

namespace addend::client {

void Copy(void* to, const void* from, size_t bytes) {
  if (bytes >= kPastCachesBytes) return CopyPastCaches(to, from, bytes);
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
