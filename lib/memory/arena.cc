#include "lib/memory/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_format.h"
#include "lib/base/units.h"
#include "lib/memory/mappings.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace addend {
namespace {

constexpr size_t kHugePage = 2 << 20;

std::byte* Map(size_t bytes, int flags) {
  void* memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
}

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Populates reserved huge pages at once: a container that may not use the machine's huge pages
// would otherwise be killed when it touches them.
MutableBytes MapHugePages(size_t bytes) {
  const size_t size = RoundUp(bytes, kHugePage);
  std::byte* const memory = Map(size, MAP_HUGETLB);
  if (memory == nullptr) return {};
  if (::madvise(memory, size, MADV_POPULATE_WRITE) == 0) return {memory, size};
  ::munmap(memory, size);
  return {};
}

// Aligns the mapping to a huge page, so that the kernel can use huge pages.
MutableBytes MapForHugePages(size_t bytes) {
  const size_t size = RoundUp(bytes, static_cast<size_t>(::sysconf(_SC_PAGESIZE)));
  std::byte* const memory = Map(size + kHugePage, MAP_NORESERVE);
  if (memory == nullptr) return {};
  const size_t before = -reinterpret_cast<uintptr_t>(memory) % kHugePage;
  if (before > 0) ::munmap(memory, before);
  ::munmap(memory + before + size, kHugePage - before);
  ::madvise(memory + before, size, MADV_HUGEPAGE);
  return {memory + before, size};
}

MutableBytes MapPages(size_t bytes) {
  std::byte* const memory = Map(bytes, MAP_NORESERVE);
  return memory == nullptr ? MutableBytes() : MutableBytes(memory, bytes);
}

}  // namespace

absl::StatusOr<std::shared_ptr<Arena>> Arena::Create(size_t bytes) {
  if (bytes == 0) return std::shared_ptr<Arena>(new Arena({}, 0));
  MutableBytes mapping;
  if (bytes >= kHugePage) {
    mapping = MapHugePages(bytes);
    if (mapping.empty()) mapping = MapForHugePages(bytes);
  }
  if (mapping.empty()) mapping = MapPages(bytes);
  if (mapping.empty()) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "cannot map %s of memory: %s", FormatByteSize(bytes), std::strerror(errno)));
  }
  return std::shared_ptr<Arena>(new Arena(mapping, bytes));
}

Arena::Arena(MutableBytes mapping, size_t bytes)
    : mapping_(mapping), memory_(mapping.first(bytes)) {
  if (!mapping_.empty()) AddMapping(mapping_);
}

void Arena::Discard(MutableBytes part) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<uintptr_t>(part.data()) + page - 1) / page * page;
  const auto end = reinterpret_cast<uintptr_t>(part.data() + part.size()) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

Arena::~Arena() {
  if (mapping_.empty()) return;
  RemoveMapping(mapping_);
  ::munmap(mapping_.data(), mapping_.size());
}

}  // namespace addend
