// The only exported function of libaddend_cuda.so.
#include <cstdio>
#include <exception>

#include "lib/client/cuda/executor.h"

extern "C" __attribute__((visibility("default"))) addend::client::DeviceExecutor*
addend_make_device_executor(uint32_t version, addend::client::DeviceSink* sink, char* why,
                            size_t why_bytes) {
  using addend::client::cuda::Errors;
  using addend::client::cuda::Executor;
  if (version != addend::client::kDeviceVersion) {
    std::snprintf(why, why_bytes,
                  "libaddend_cuda.so is of version %u and libaddend.so of version %u: install both "
                  "from one build",
                  addend::client::kDeviceVersion, version);
    return nullptr;
  }
  try {
    std::unique_ptr<Executor> executor = Executor::Make(sink);
    if (executor == nullptr) std::snprintf(why, why_bytes, "%s", Errors::Text());
    return executor.release();
  } catch (const std::exception& error) {
    std::snprintf(why, why_bytes, "a GPU cannot be used: %s", error.what());
    return nullptr;
  }
}
