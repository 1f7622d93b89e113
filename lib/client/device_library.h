// The library that drives a GPU (device.h), as this process has loaded it, and one executor of it.
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

// The GPU of this process, once a tensor of it has come. Whoever has a round or a tensor that uses
// it keeps it; the library stays loaded. Any thread; no method waits for the GPU but Join and the
// destructor.
class Device {
 public:
  // Loads libaddend_cuda.so, which lies beside this library (or ADDEND_CUDA_LIBRARY), for the
  // device that is current in this thread. ADDEND_ERROR_INVALID: it is not there, or has no device.
  static Error Open(std::shared_ptr<DeviceSink> sink, std::shared_ptr<Device>* device);
  ~Device();

  std::string bus_id() const { return executor_->bus_id(); }
  Error MakeId(std::string* id);
  Error Join(const ipc::Group& group, const std::string& id, bool ordered);
  void Map(const Segment& segment, bool read_only);
  void Unmap(const Segment& segment);
  // ADDEND_ERROR_RESOURCES: the device goes on without.
  Error Export(uint64_t bytes, std::byte** memory, GuardedFd* dmabuf);
  void Unexport(std::byte* memory) { executor_->Unexport(memory); }
  Error Begin(DeviceRound* round, void* stream);
  Error Contribute(DeviceRound* round, uint64_t with_data);
  Error Fetch(DeviceRound* round, uint64_t offset, uint64_t bytes);
  Error Arrived(DeviceRound* round, uint64_t offset, uint64_t bytes, bool* complete);
  Error WaitOn(DeviceRound* round, void* stream);
  void End(DeviceRound* round);

 private:
  Device(std::shared_ptr<DeviceSink> sink, DeviceExecutor* executor)
      : sink_(std::move(sink)), executor_(executor) {}
  Error Failed() const;
  const std::shared_ptr<DeviceSink> sink_;  // outlives the executor
  const std::unique_ptr<DeviceExecutor> executor_;
};

}  // namespace addend::client
