// Memory of a GPU, told by the descriptor of a dma-buf, at addresses of this process that are
// reserved for it and that no processor can read: they name its bytes to a NIC, which can.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "lib/base/bytes.h"
#include "lib/base/fd.h"

namespace addend {

class DeviceRange {
 public:
  // `bytes` > 0, of the dma-buf's first. RESOURCE_EXHAUSTED: no room for the addresses.
  static absl::StatusOr<std::shared_ptr<DeviceRange>> Reserve(UniqueFd dmabuf, size_t bytes);
  ~DeviceRange();
  DeviceRange(const DeviceRange&) = delete;
  DeviceRange& operator=(const DeviceRange&) = delete;

  // Only to be passed on: who reads it ends the process.
  Bytes memory() const { return memory_; }

 private:
  DeviceRange(UniqueFd dmabuf, Bytes memory);
  const UniqueFd dmabuf_;
  const Bytes memory_;
};

}  // namespace addend
