// Copies between the caller's tensors and the agent's memory.
#pragma once

#include <cstddef>

namespace addend::client {

// From so many bytes on a copy goes past the caches: it would not stay there until it is read, and
// a line that is written in the cache is read from memory first, a third of all the copy's traffic.
inline constexpr size_t kPastCachesBytes = 16 << 20;

// As std::memcpy: the ranges do not overlap. What another thread or process is told of it after the
// return, it sees.
void Copy(void* to, const void* from, size_t bytes);

}  // namespace addend::client
