// GPU memory behind the descriptor of a dma-buf, at reserved addresses of this process that no
// processor can read. A NIC, which can read the memory, gets these addresses as the names of its
// bytes.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "lib/base/bytes.h"
#include "lib/base/fd.h"

namespace addend {

class DeviceRange {
 public:
  // `bytes` > 0, from the begin of the dma-buf. RESOURCE_EXHAUSTED: no room for the addresses.
  static absl::StatusOr<std::shared_ptr<DeviceRange>> Reserve(UniqueFd dmabuf, size_t bytes);
  ~DeviceRange();
  DeviceRange(const DeviceRange&) = delete;
  DeviceRange& operator=(const DeviceRange&) = delete;

  // Only to be passed on: reading it ends the process.
  Bytes memory() const { return memory_; }

 private:
  DeviceRange(UniqueFd dmabuf, Bytes memory);
  const UniqueFd dmabuf_;
  const Bytes memory_;
};

}  // namespace addend
