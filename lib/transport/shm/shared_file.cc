#include "lib/transport/shm/shared_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/units.h"

namespace addend::shm {
namespace {

// Of this process. The kernel allows some 65,000 mappings and 128 TiB of addresses, which other
// memory needs too.
constexpr int kMostMappings = 16384;
constexpr uint64_t kMostMappedBytes = uint64_t{1} << 45;
std::atomic<int> mappings{0};
std::atomic<uint64_t> mapped_bytes{0};

void Forget(size_t bytes) {
  mappings.fetch_sub(1);
  mapped_bytes.fetch_sub(bytes);
}

absl::Status CheckHarmless(const UniqueFd& file, size_t bytes) {
  struct statfs system = {};
  if (!file.valid() || ::fstatfs(file.get(), &system) != 0 || system.f_type != TMPFS_MAGIC) {
    return absl::InvalidArgumentError("shared memory that is no plain file in memory");
  }
  const int seals = ::fcntl(file.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return absl::InvalidArgumentError("shared memory that its owner can shorten");
  }
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0 || static_cast<uint64_t>(status.st_size) < bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "shared memory of %s that is announced as %s",
        FormatByteSize(static_cast<uint64_t>(status.st_size)), FormatByteSize(bytes)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<MappedFile> MappedFile::Map(const UniqueFd& file, size_t bytes, Access access) {
  if (absl::Status harmless = CheckHarmless(file, bytes); !harmless.ok()) return harmless;
  const int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  const bool few = mappings.fetch_add(1) < kMostMappings;
  const bool room = mapped_bytes.fetch_add(bytes) + bytes <= kMostMappedBytes && few;
  void* const memory =
      room ? ::mmap(nullptr, bytes, protection, MAP_SHARED, file.get(), 0) : MAP_FAILED;
  if (memory == MAP_FAILED) {
    Forget(bytes);
    return absl::ResourceExhaustedError(
        absl::StrFormat("cannot map %s of another process's memory: %s", FormatByteSize(bytes),
                        room ? std::strerror(errno) : "too much of it is mapped"));
  }
  return MappedFile(MutableBytes(static_cast<std::byte*>(memory), bytes));
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : memory_(std::exchange(other.memory_, MutableBytes())) {}

MappedFile::~MappedFile() {
  if (memory_.empty()) return;
  ::munmap(memory_.data(), memory_.size());
  Forget(memory_.size());
}

}  // namespace addend::shm
