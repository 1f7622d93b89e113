// Makes a device current in a thread, and restores the caller's device at the end of the scope.
#pragma once

#include <cuda_runtime_api.h>

namespace addend::client::cuda {

class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    if (cudaGetDevice(&before_) != cudaSuccess) before_ = -1;
    changed_ = before_ != device;
    if (changed_) cudaSetDevice(device);
  }
  ~DeviceGuard() {
    if (changed_ && before_ >= 0) cudaSetDevice(before_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = -1;
  bool changed_ = false;
};

}  // namespace addend::client::cuda
