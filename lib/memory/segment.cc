#include "lib/memory/segment.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/units.h"
#include "lib/memory/mappings.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace addend {
namespace {

absl::Status SegmentError(const char* call, size_t bytes) {
  return absl::ResourceExhaustedError(absl::StrFormat(
      "cannot make a shared segment of %s: %s: %s (see the memory limit of the container)",
      FormatByteSize(bytes), call, std::strerror(errno)));
}

}  // namespace

absl::StatusOr<std::shared_ptr<Segment>> Segment::Create(const std::string& name, size_t bytes,
                                                         Peer peer) {
  UniqueFd fd(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return SegmentError("memfd_create", bytes);
  const size_t guard = peer == Peer::kMayWriteGuarded ? kGuardBytes : 0;
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes + guard)) != 0)
    return SegmentError("ftruncate", bytes);
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return SegmentError("mmap", bytes);
  // A peer that could shrink the file would kill this process with SIGBUS.
  int seals = F_SEAL_SHRINK | F_SEAL_GROW;
  if (peer == Peer::kReadOnly) seals |= F_SEAL_FUTURE_WRITE;
  seals |= F_SEAL_SEAL;
  if (::fcntl(fd.get(), F_ADD_SEALS, seals) != 0) {
    const absl::Status status = SegmentError("F_ADD_SEALS", bytes);
    ::munmap(memory, bytes);
    return status;
  }
  return std::shared_ptr<Segment>(
      new Segment(std::move(fd), MutableBytes(static_cast<std::byte*>(memory), bytes), peer));
}

Segment::Segment(UniqueFd fd, MutableBytes memory, Peer peer)
    : fd_(std::move(fd)), memory_(memory), peer_(peer) {
  AddMapping(memory_);
}

void Segment::Lend() const {
  if (peer_ == Peer::kMayWrite) return;
  LendMapping(memory_, fd_.get(), peer_ == Peer::kMayWriteGuarded ? memory_.size() : 0);
}

Segment::~Segment() {
  RemoveMapping(memory_);
  ::munmap(memory_.data(), memory_.size());
}

}  // namespace addend
