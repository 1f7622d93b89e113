#include "lib/memory/arena.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_format.h"
#include "lib/base/units.h"

namespace addend {

absl::StatusOr<std::shared_ptr<Arena>> Arena::Create(size_t bytes) {
  if (bytes == 0) return std::shared_ptr<Arena>(new Arena({}));
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "cannot map %s of memory: %s", FormatByteSize(bytes), std::strerror(errno)));
  }
  return std::shared_ptr<Arena>(new Arena(MutableBytes(static_cast<std::byte*>(memory), bytes)));
}

Arena::~Arena() {
  if (!memory_.empty()) ::munmap(memory_.data(), memory_.size());
}

}  // namespace addend
