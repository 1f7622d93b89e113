// The library that drives a GPU (device.h), as loaded by this process, and an executor of it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "lib/client/device.h"
#include "lib/client/error.h"
#include "lib/client/fork_guard.h"
#include "lib/client/segment.h"

namespace addend::client {

// The GPU of this process, opened for its first tensor. Every round and tensor that uses the GPU
// keeps it alive; the library stays loaded. Any thread. Only Join, Unmap, Export, Unexport and the
// destructor wait for the GPU.
class Device {
 public:
  // Loads libaddend_cuda.so from beside this library (or ADDEND_CUDA_LIBRARY), for the device that
  // is current in this thread. ADDEND_ERROR_INVALID: the library is missing, or finds no device.
  static Error Open(std::shared_ptr<DeviceSink> sink, std::shared_ptr<Device>* device);
  // `executor` calls `sink`.
  Device(std::shared_ptr<DeviceSink> sink, std::unique_ptr<DeviceExecutor> executor)
      : sink_(std::move(sink)), executor_(std::move(executor)) {}
  ~Device();

  std::string bus_id() const { return executor_->bus_id(); }
  Error MakeId(std::string* id);
  Error Join(const ipc::Group& group, const std::string& id, bool ordered);
  void Map(const Segment& segment, bool read_only);
  void Unmap(const Segment& segment);
  // ADDEND_ERROR_RESOURCES: the device stays usable, without exported memory.
  Error Export(uint64_t bytes, std::byte** memory, GuardedFd* dmabuf);
  void Unexport(std::byte* memory) { executor_->Unexport(memory); }
  Error Begin(DeviceRound* round, void* stream);
  Error Contribute(DeviceRound* round, uint64_t with_data);
  Error Fetch(DeviceRound* round, uint64_t offset, uint64_t bytes);
  Error Arrived(DeviceRound* round, uint64_t offset, uint64_t bytes, bool* complete);
  Error WaitOn(DeviceRound* round, void* stream);
  void End(DeviceRound* round);

 private:
  Error Failed() const;
  const std::shared_ptr<DeviceSink> sink_;  // outlives the executor
  const std::unique_ptr<DeviceExecutor> executor_;
};

}  // namespace addend::client
