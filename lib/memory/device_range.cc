#include "lib/memory/device_range.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/units.h"
#include "lib/memory/mappings.h"

namespace addend {

absl::StatusOr<std::shared_ptr<DeviceRange>> DeviceRange::Reserve(UniqueFd dmabuf, size_t bytes) {
  void* const reserved =
      ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "cannot reserve addresses for %s: %s", FormatByteSize(bytes), std::strerror(errno)));
  }
  return std::shared_ptr<DeviceRange>(
      new DeviceRange(std::move(dmabuf), {static_cast<const std::byte*>(reserved), bytes}));
}

DeviceRange::DeviceRange(UniqueFd dmabuf, Bytes memory)
    : dmabuf_(std::move(dmabuf)), memory_(memory) {
  AddMapping(memory_, dmabuf_.get());
}

DeviceRange::~DeviceRange() {
  RemoveMapping(memory_);
  ::munmap(const_cast<std::byte*>(memory_.data()), memory_.size());
}

}  // namespace addend
