#include "lib/wire/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>

namespace addend {

uint32_t Crc32c(Bytes data) {
  uint32_t crc = ~0u;
  // The library's length is an int; its argument is not const, but only read.
  constexpr size_t kStep = size_t{1} << 30;
  for (size_t at = 0; at < data.size(); at += kStep) {
    const size_t length = std::min(kStep, data.size() - at);
    auto* bytes = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(data.data() + at));
    crc = crc32_iscsi(bytes, static_cast<int>(length), crc);
  }
  return ~crc;
}

}  // namespace addend
