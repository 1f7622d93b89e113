#include "lib/client/cuda/export.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <type_traits>

namespace addend::client::cuda {
namespace {

// Granularities of the driver: a dma-buf begins and ends at pages of the host.
constexpr uint64_t kPage = 64 << 10;
constexpr uint64_t kBlock = 2 << 20;

// The driver's own interface: the CUDA runtime does not offer these functions.
struct Driver {
  decltype(&cuDeviceGetAttribute) attribute = nullptr;
  decltype(&cuMemGetHandleForAddressRange) handle = nullptr;
  decltype(&cuPointerSetAttribute) set_pointer = nullptr;
};

Driver Load() {
  Driver driver;
  void* const library =
      // The runtime has already loaded the driver.
      dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return driver;
  const auto find = [library](auto* function, const char* name) {
    *function =
        reinterpret_cast<std::remove_reference_t<decltype(*function)>>(dlsym(library, name));
  };
  find(&driver.attribute, "cuDeviceGetAttribute");
  find(&driver.handle, "cuMemGetHandleForAddressRange");
  find(&driver.set_pointer, "cuPointerSetAttribute");
  return driver;
}

}  // namespace

bool ExportMemory(int device, uint64_t bytes, std::byte** memory, int* dmabuf, std::string* why) {
  static const Driver driver = Load();
  if (driver.attribute == nullptr || driver.handle == nullptr || driver.set_pointer == nullptr) {
    *why = "its driver is older than dma-buf (CUDA 11.7)";
    return false;
  }
  int supported = 0;
  driver.attribute(&supported, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, device);
  if (supported == 0) {
    *why = "its driver gives no dma-buf (that takes its open kernel modules)";
    return false;
  }
  const uint64_t size = (bytes + kBlock - 1) / kBlock * kBlock;
  void* allocated = nullptr;
  if (const cudaError_t status = cudaMalloc(&allocated, size); status != cudaSuccess) {
    cudaGetLastError();
    *why = "no " + std::to_string(size) + " bytes: " + cudaGetErrorString(status);
    return false;
  }
  const auto address = reinterpret_cast<CUdeviceptr>(allocated);
  int opened = -1;
  const CUresult status =
      address % kPage != 0
          ? CUDA_ERROR_INVALID_VALUE
          : driver.handle(&opened, address, size, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
  if (status != CUDA_SUCCESS) {
    cudaFree(allocated);
    *why = "its memory has no dma-buf (error " + std::to_string(status) + " of the CUDA driver)";
    return false;
  }
  // Copies to this memory that the runtime treats as synchronous are complete when they return: a
  // NIC reads without the driver's knowledge.
  unsigned int synchronous = 1;
  driver.set_pointer(&synchronous, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address);
  *memory = static_cast<std::byte*>(allocated);
  *dmabuf = opened;
  return true;
}

}  // namespace addend::client::cuda
