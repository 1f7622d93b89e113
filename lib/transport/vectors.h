// Helpers for the vectors of a system call.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>

namespace addend {

// Shortens the vectors to their first `most` bytes (at least 1). Returns the bytes that are left.
inline size_t Clip(iovec* vectors, int* count, size_t most) {
  size_t bytes = 0;
  for (int i = 0; i < *count; ++i) {
    vectors[i].iov_len = std::min(vectors[i].iov_len, most - bytes);
    bytes += vectors[i].iov_len;
    if (bytes == most) *count = i + 1;
  }
  return bytes;
}

}  // namespace addend
