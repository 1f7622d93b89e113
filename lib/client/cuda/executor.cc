// Construction and destruction of an executor, its group, and the host memory that it may use.
#include "lib/client/cuda/executor.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <thread>

#include "lib/client/cuda/device_guard.h"
#include "lib/client/cuda/export.h"

namespace addend::client::cuda {
namespace {

// Time left to other members of a group at the end; a dead member would never take part.
constexpr auto kLastCollectives = std::chrono::seconds(2);

// Returns the reason why no device can be used, or an empty string.
std::string WhyNoDevice() {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status == cudaSuccess && devices > 0) return "";
  cudaGetLastError();
  int driver = 0;
  int runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  if (driver == 0) {
    return std::string("no NVIDIA driver: ") + cudaGetErrorString(status) +
           "; libcuda.so.1 comes with the driver, and into a container with its GPUs";
  }
  if (status == cudaErrorInsufficientDriver) {
    char text[256];
    std::snprintf(text, sizeof(text),
                  "the NVIDIA driver is too old: it is made for CUDA %d.%d, and this library needs "
                  "CUDA %d.%d",
                  driver / 1000, driver / 10 % 100, runtime / 1000, runtime / 10 % 100);
    return text;
  }
  return std::string("no GPU that this process may use: ") +
         (status == cudaSuccess ? "none is visible (CUDA_VISIBLE_DEVICES)"
                                : cudaGetErrorString(status));
}

std::string BusIdOf(int device) {
  char id[32] = "?";
  if (cudaDeviceGetPCIBusId(id, sizeof(id), device) != cudaSuccess) return "?";
  std::string lower(id);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

}  // namespace

std::unique_ptr<Executor> Executor::Make(DeviceSink* sink) {
  const Errors nobody("");
  const std::string why = WhyNoDevice();
  if (!why.empty()) {
    nobody.Fail("%s", why.c_str());
    return nullptr;
  }
  int device = 0;
  if (!nobody.Check(cudaGetDevice(&device), "cudaGetDevice")) return nullptr;
  std::unique_ptr<Executor> executor(new Executor(sink, device, BusIdOf(device)));
  return executor->Open() ? std::move(executor) : nullptr;
}

Executor::Executor(DeviceSink* sink, int device, std::string gpu)
    : device_(device),
      errors_(std::move(gpu)),
      sink_(sink),
      events_(errors_),
      collectives_(std::make_unique<Collectives>(errors_)) {}

bool Executor::Open() {
  if (!errors_.Check(LoadKernels(), "loading code that this kind of GPU can run")) {
    return false;
  }
  int least = 0;
  int greatest = 0;
  if (!errors_.Check(cudaDeviceGetStreamPriorityRange(&least, &greatest),
                     "cudaDeviceGetStreamPriorityRange")) {
    return false;
  }
  // Sums are short, and other ranks wait for them; the training's kernels fill the device.
  for (cudaStream_t* stream : {&collective_, &down_, &fetch_, &up_}) {
    if (!errors_.Check(cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, greatest),
                       "cudaStreamCreateWithPriority")) {
      return false;
    }
  }
  between_ = events_.Take();
  if (between_ == nullptr) return false;
  watch_ = std::make_unique<EventWatch>(device_, [this](cudaError_t status) {
    sink_->Failed(errors_.Sentence(status, "copying a contribution to host memory").c_str());
  });
  return true;
}

Executor::~Executor() {
  const DeviceGuard guard(device_);
  // Gives members that need this member's part time to get it, but does not wait for a member that
  // is blocked on a dead member.
  const auto deadline = std::chrono::steady_clock::now() + kLastCollectives;
  while (!IsAlone() && cudaStreamQuery(collective_) == cudaErrorNotReady &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  collectives_->Abort();
  for (cudaStream_t stream : {collective_, down_, fetch_, up_}) {
    if (stream == nullptr) continue;
    cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
  }
  watch_.reset();
  collectives_.reset();
  for (Slot& slot : slots_) cudaFree(slot.memory);
  cudaFree(narrow_in_);
  cudaFree(narrow_out_);
  for (const auto& [memory, pinned] : mapped_) {
    if (pinned) cudaHostUnregister(memory);
  }
  cudaGetLastError();  // clears errors of the destruction
}

bool Executor::MakeId(char* id) {
  const DeviceGuard guard(device_);
  return collectives_->MakeId(id);
}

bool Executor::Join(const ipc::Group& group, const char* id, bool ordered) {
  const DeviceGuard guard(device_);
  return collectives_->Join(group, id, ordered);
}

bool Executor::Allocate(std::byte** memory, uint64_t bytes, const char* what) {
  void* allocated = nullptr;
  const cudaError_t status = cudaMalloc(&allocated, bytes);
  if (status != cudaSuccess) {
    cudaGetLastError();  // a failed allocation does not mean that the device has failed
    return errors_.Fail("%s; wanted were %llu bytes %s",
                        errors_.Sentence(status, "cudaMalloc").c_str(),
                        static_cast<unsigned long long>(bytes), what);
  }
  *memory = static_cast<std::byte*>(allocated);
  return true;
}

bool Executor::ReserveSlots() {
  for (Slot& slot : slots_) {
    if (slot.memory != nullptr) continue;
    if (slot.copied == nullptr) slot.copied = events_.Take();
    if (slot.copied == nullptr) return false;
    if (!Allocate(&slot.memory, ipc::kChunkBytes, "for pieces on their way to host memory")) {
      return false;
    }
  }
  return true;
}

bool Executor::ReserveConversion() {
  for (std::byte** memory : {&narrow_in_, &narrow_out_}) {
    if (*memory != nullptr) continue;
    if (!Allocate(memory, ipc::kChunkBytes, "to convert elements")) return false;
  }
  return true;
}

void Executor::Map(void* memory, size_t bytes, bool read_only) {
  const DeviceGuard guard(device_);
  int has_read_only = 0;
  cudaDeviceGetAttribute(&has_read_only, cudaDevAttrHostRegisterReadOnlySupported, device_);
  unsigned flags = cudaHostRegisterPortable;
  if (read_only && has_read_only != 0) flags |= cudaHostRegisterReadOnly;
  const cudaError_t status = cudaHostRegister(memory, bytes, flags);
  if (status != cudaSuccess) cudaGetLastError();
  const std::lock_guard lock(mu_);
  mapped_[memory] = status == cudaSuccess;
  if (status == cudaSuccess || said_unpinned_) return;
  said_unpinned_ = true;
  std::fprintf(stderr,
               "addend: GPU %s: %zu bytes of shared memory cannot be pinned (%s), so copies to and "
               "from the GPU are slower; see ulimit -l and the container's memory limits\n",
               bus_id(), bytes, cudaGetErrorString(status));
}

void Executor::Unmap(void* memory) {
  const DeviceGuard guard(device_);
  // Waits for the copies under way.
  cudaStreamSynchronize(down_);
  cudaStreamSynchronize(fetch_);
  cudaStreamSynchronize(up_);
  bool pinned = false;
  {
    const std::lock_guard lock(mu_);
    const auto found = mapped_.find(memory);
    if (found == mapped_.end()) return;
    pinned = found->second;
    mapped_.erase(found);
  }
  if (pinned) cudaHostUnregister(memory);
}

bool Executor::Export(uint64_t bytes, std::byte** memory, int* dmabuf) {
  const DeviceGuard guard(device_);
  std::string why;
  if (ExportMemory(device_, bytes, memory, dmabuf, &why)) return true;
  return errors_.Fail("GPU %s: %s", bus_id(), why.c_str());
}

void Executor::Unexport(std::byte* memory) {
  const DeviceGuard guard(device_);
  cudaFree(memory);  // waits for the work that uses it
}

}  // namespace addend::client::cuda
