// The CUDA runtime's functions on the host.
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <unordered_set>

#include "tests/support/emulated_cuda/emulated.h"
#include "tests/support/emulated_cuda/streams.h"

namespace addend::emulated {
namespace {

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* const value = std::getenv(name);
  return value != nullptr ? std::atoll(value) : otherwise;
}

struct Device {
  std::atomic<int64_t> devices{FromEnvironment("EMULATED_CUDA_DEVICES", 8)};
  std::atomic<int64_t> bytes_per_s{FromEnvironment("EMULATED_CUDA_BYTES_PER_S", 0)};
  std::atomic<int64_t> copies_left{FromEnvironment("EMULATED_CUDA_FAIL_AFTER_COPIES", -1)};
  std::atomic<int64_t> register_fails{FromEnvironment("EMULATED_CUDA_REGISTER_FAILS", 0)};
  std::atomic<int64_t> export_fails{FromEnvironment("EMULATED_CUDA_EXPORT_FAILS", 0)};
  std::atomic<bool> failed{false};

  std::atomic<uint64_t> synchronisations{0};
  std::atomic<uint64_t> copies{0};
  std::atomic<uint64_t> allocations{0};

  std::mutex mu;
  // Guarded by mu.
  std::unordered_set<void*> pinned;
  std::unordered_map<void*, uint64_t> exported;  // address -> bytes
};

Device& The() {
  static auto* const device = new Device;
  return *device;
}

thread_local int current = 0;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t Remember(cudaError_t status) {
  if (status != cudaSuccess) last_error = status;
  return status;
}

// Runs in the stream's thread.
void Copy(void* to, const void* from, size_t bytes) {
  Device& device = The();
  if (device.failed) return;
  device.copies.fetch_add(1);
  if (device.copies_left >= 0 && device.copies_left.fetch_sub(1) <= 0) {
    device.failed = true;
    return;
  }
  const int64_t rate = device.bytes_per_s;
  if (rate > 0) {
    std::this_thread::sleep_for(
        std::chrono::nanoseconds(static_cast<int64_t>(1e9 * static_cast<double>(bytes) / rate)));
  }
  std::memmove(to, from, bytes);
}

}  // namespace

void Enqueue(cudaStream_t stream, std::function<void()> task) {
  if (stream == nullptr) {
    task();
  } else {
    stream->Enqueue(std::move(task));
  }
}

int DeviceOf(cudaStream_t stream) { return stream == nullptr ? current : stream->device; }
bool HasFailed() { return The().failed; }
void FailNow() { The().failed = true; }
bool ExportFails() { return The().export_fails != 0; }

void NoteExported(void* memory, uint64_t bytes) {
  const std::lock_guard lock(The().mu);
  The().exported[memory] = bytes;
}

}  // namespace addend::emulated

using addend::emulated::current;
using addend::emulated::Enqueue;
using addend::emulated::HasFailed;
using addend::emulated::last_error;
using addend::emulated::Remember;
using addend::emulated::The;

extern "C" {

void emulated_cuda_set(const char* name, int64_t value) {
  const std::string_view which(name);
  if (which == "devices") The().devices = value;
  if (which == "bytes_per_s") The().bytes_per_s = value;
  if (which == "register_fails") The().register_fails = value;
  if (which == "export_fails") The().export_fails = value;
  if (which == "fail_after_copies") {
    The().copies_left = value;
    The().failed = false;
  }
}

uint64_t emulated_cuda_count(const char* name) {
  const std::string_view which(name);
  if (which == "synchronisations") return The().synchronisations;
  if (which == "copies") return The().copies;
  if (which == "allocations") return The().allocations;
  const std::lock_guard lock(The().mu);
  return which == "exported" ? The().exported.size() : The().pinned.size();
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInsufficientDriver:
      return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    default:
      return "cudaErrorUnknown";
  }
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInsufficientDriver:
      return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    default:
      return "emulated";
  }
}

cudaError_t cudaGetLastError() {
  const cudaError_t status = HasFailed() ? cudaErrorIllegalAddress : last_error;
  last_error = cudaSuccess;
  return status;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = The().devices < 0 ? 0 : 13000;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  const int64_t devices = The().devices;
  *count = devices > 0 ? static_cast<int>(devices) : 0;
  if (devices == 0) return Remember(cudaErrorNoDevice);
  return devices < 0 ? Remember(cudaErrorInsufficientDriver) : cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = current;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= The().devices) return Remember(cudaErrorInvalidDevice);
  current = device;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr /*attribute*/, int /*device*/) {
  *value = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* id, int bytes, int device) {
  const char* const chosen = std::getenv("EMULATED_CUDA_BUS_ID");
  if (chosen != nullptr) {
    std::snprintf(id, static_cast<size_t>(bytes), "%s", chosen);
  } else {
    std::snprintf(id, static_cast<size_t>(bytes), "0000:%02X:00.0", 0x3a + device);
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  The().synchronisations.fetch_add(1);
  return HasFailed() ? cudaErrorIllegalAddress : cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  if (HasFailed()) return cudaErrorIllegalAddress;
  The().allocations.fetch_add(1);
  *stream = new CUstream_st(current);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int /*priority*/) {
  return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return HasFailed() ? cudaErrorIllegalAddress : cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  The().synchronisations.fetch_add(1);
  if (stream != nullptr) stream->Drain();
  return HasFailed() ? cudaErrorIllegalAddress : cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (HasFailed()) return cudaErrorIllegalAddress;
  return stream == nullptr || stream->IsIdle() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t /*stream*/, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return HasFailed() ? cudaErrorIllegalAddress : cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
  if (HasFailed()) return cudaErrorIllegalAddress;
  const std::shared_ptr<Record> record = event->Last();
  if (record != nullptr) Enqueue(stream, [record] { record->Await(); });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  if (HasFailed()) return cudaErrorIllegalAddress;
  The().allocations.fetch_add(1);
  *event = new CUevent_st(current);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (HasFailed()) return cudaErrorIllegalAddress;
  if (event->device != addend::emulated::DeviceOf(stream)) {
    return Remember(cudaErrorInvalidResourceHandle);
  }
  Enqueue(stream, [record = event->Renew()] { record->Reach(); });
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (HasFailed()) return cudaErrorIllegalAddress;
  const std::shared_ptr<Record> record = event->Last();
  return record == nullptr || record->IsReached() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  The().synchronisations.fetch_add(1);
  if (const std::shared_ptr<Record> record = event->Last()) record->Await();
  return HasFailed() ? cudaErrorIllegalAddress : cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  if (HasFailed()) return cudaErrorIllegalAddress;
  The().allocations.fetch_add(1);
  *memory = std::malloc(bytes);
  return *memory != nullptr ? cudaSuccess : Remember(cudaErrorMemoryAllocation);
}

cudaError_t cudaFree(void* memory) {
  uint64_t mapped = 0;
  {
    const std::lock_guard lock(The().mu);
    const auto exported = The().exported.find(memory);
    if (exported != The().exported.end()) {
      mapped = exported->second;
      The().exported.erase(exported);
    }
  }
  if (mapped > 0) {
    ::munmap(memory, mapped);
  } else {
    std::free(memory);
  }
  return HasFailed() ? cudaErrorIllegalAddress : cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind /*kind*/) {
  The().synchronisations.fetch_add(1);
  if (HasFailed()) return cudaErrorIllegalAddress;
  std::memmove(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind /*kind*/,
                            cudaStream_t stream) {
  if (HasFailed()) return cudaErrorIllegalAddress;
  Enqueue(stream, [=] { addend::emulated::Copy(to, from, bytes); });
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void* memory, size_t /*bytes*/, unsigned /*flags*/) {
  if (HasFailed()) return cudaErrorIllegalAddress;
  if (The().register_fails != 0) return Remember(cudaErrorMemoryAllocation);
  const std::lock_guard lock(The().mu);
  const bool added = The().pinned.insert(memory).second;
  return added ? cudaSuccess : Remember(cudaErrorHostMemoryAlreadyRegistered);
}

cudaError_t cudaHostUnregister(void* memory) {
  const std::lock_guard lock(The().mu);
  return The().pinned.erase(memory) > 0 ? cudaSuccess : Remember(cudaErrorHostMemoryNotRegistered);
}

}  // extern "C"
