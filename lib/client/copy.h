// Copies between the caller's tensors and the agent's memory.
#pragma once

#include <cstddef>
#include <functional>

namespace addend::client {

// Copies of at least this size bypass the caches (copy_past_caches.h).
inline constexpr size_t kPastCachesBytes = 16 << 20;

// Like std::memcpy: the ranges must not overlap. A thread or process that is informed after the
// return sees the copied bytes.
void Copy(void* to, const void* from, size_t bytes);

// Copy(), or another function with its contract.
using CopyFn = std::function<void(void* to, const void* from, size_t bytes)>;
// Copy() that returns no sooner than at this rate; 0: no limit.
CopyFn CopyAtRate(double bytes_per_s);

}  // namespace addend::client
