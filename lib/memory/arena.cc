#include "lib/memory/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
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

void Arena::Discard(MutableBytes part) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<uintptr_t>(part.data()) + page - 1) / page * page;
  const auto end = reinterpret_cast<uintptr_t>(part.data() + part.size()) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

Arena::~Arena() {
  if (!memory_.empty()) ::munmap(memory_.data(), memory_.size());
}

}  // namespace addend
