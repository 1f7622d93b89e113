// Maps the memory that the agent shares, out of the reach of forked children.
#include "lib/client/segment.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

#include "lib/client/fork_guard.h"

namespace addend::client {

Error Segment::Map(int fd, size_t bytes, Access access, const std::string& what,
                   std::unique_ptr<Segment>* segment, size_t guard_bytes) {
  struct stat status = {};
  if (::fstat(fd, &status) != 0 || static_cast<size_t>(status.st_size) < bytes) {
    return MakeError(ADDEND_ERROR_INTERNAL,
                     "the agent's memory for %s has %lld bytes instead of %zu; use libaddend.so "
                     "and addend-agent of one release",
                     what.c_str(), static_cast<long long>(status.st_size), bytes);
  }
  const bool guarded = static_cast<size_t>(status.st_size) >= bytes + guard_bytes;
  const size_t mapped = bytes + (guarded ? guard_bytes : 0);
  const int protection = access == Access::kReadOnly ? PROT_READ : PROT_READ | PROT_WRITE;
  const ForkLock lock;  // no child may inherit the mapping before madvise
  void* const data = ::mmap(nullptr, mapped, protection, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    return MakeError(ADDEND_ERROR_RESOURCES,
                     "cannot map %zu bytes of the agent's memory for %s: %s", bytes, what.c_str(),
                     SystemError(errno).c_str());
  }
  ::madvise(data, mapped, MADV_DONTFORK);
  segment->reset(new Segment(static_cast<std::byte*>(data), bytes, mapped - bytes));
  return {};
}

Segment::~Segment() { ::munmap(data_, bytes_ + guard_bytes_); }

void Segment::Withdraw() const {
  if (guard_bytes_ == 0) return;
  reinterpret_cast<std::atomic<uint32_t>*>(data_ + bytes_)->exchange(1);
}

}  // namespace addend::client
