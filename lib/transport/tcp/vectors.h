// What one system call reads or writes.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>

namespace addend::tcp {

// Leaves the first `most` bytes, at least 1, of these. Returns how many bytes that are.
inline size_t Clip(iovec* vectors, int* count, size_t most) {
  size_t bytes = 0;
  for (int i = 0; i < *count; ++i) {
    vectors[i].iov_len = std::min(vectors[i].iov_len, most - bytes);
    bytes += vectors[i].iov_len;
    if (bytes == most) *count = i + 1;
  }
  return bytes;
}

}  // namespace addend::tcp
