// Loads the library that drives a GPU, and turns its failures into errors.
#include "lib/client/device_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>

namespace addend::client {
namespace {

constexpr char kLibrary[] = "libaddend_cuda.so";

// The path of libaddend_cuda.so beside this library.
std::string DefaultPath() {
  Dl_info info;
  if (dladdr(reinterpret_cast<const void*>(&DefaultPath), &info) == 0 || info.dli_fname == nullptr)
    return kLibrary;
  const std::string self = info.dli_fname;
  const size_t slash = self.rfind('/');
  return slash == std::string::npos ? kLibrary : self.substr(0, slash + 1) + kLibrary;
}

}  // namespace

Error Device::Open(std::shared_ptr<DeviceSink> sink, std::shared_ptr<Device>* device) {
  const char* chosen = std::getenv("ADDEND_CUDA_LIBRARY");
  const std::string path = chosen != nullptr && *chosen != '\0' ? chosen : DefaultPath();
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return MakeError(
        ADDEND_ERROR_INVALID,
        "a tensor of a GPU needs %s, which this build does not have or which cannot be "
        "loaded: %s; copy the tensor to host memory, or install a build with CUDA",
        path.c_str(), dlerror());
  }
  const auto make = reinterpret_cast<MakeDeviceExecutor>(dlsym(library, kDeviceEntry));
  if (make == nullptr) {
    return MakeError(ADDEND_ERROR_INVALID, "%s is not the CUDA library of Addend: it has no %s",
                     path.c_str(), kDeviceEntry);
  }
  char why[1024] = {};
  std::unique_ptr<DeviceExecutor> executor(make(kDeviceVersion, sink.get(), why, sizeof(why)));
  if (executor == nullptr) return MakeError(ADDEND_ERROR_INVALID, "%s", why);
  *device = std::make_shared<Device>(std::move(sink), std::move(executor));
  return {};
}

Device::~Device() = default;

Error Device::Failed() const { return MakeError(ADDEND_ERROR_PEER_LOST, "%s", executor_->Error()); }

Error Device::MakeId(std::string* id) {
  char bytes[kDeviceIdBytes];
  if (!executor_->MakeId(bytes)) return Failed();
  id->assign(bytes, sizeof(bytes));
  return {};
}

Error Device::Join(const ipc::Group& group, const std::string& id, bool ordered) {
  return executor_->Join(group, id.data(), ordered) ? Error{} : Failed();
}

void Device::Map(const Segment& segment, bool read_only) {
  executor_->Map(segment.data(), segment.bytes(), read_only);
}

void Device::Unmap(const Segment& segment) { executor_->Unmap(segment.data()); }

Error Device::Export(uint64_t bytes, std::byte** memory, GuardedFd* dmabuf) {
  int fd = -1;
  if (!executor_->Export(bytes, memory, &fd)) {
    return MakeError(ADDEND_ERROR_RESOURCES, "%s", executor_->Error());
  }
  // Not earlier: the export waits for the device. A child forked before this point keeps the
  // descriptor until it ends.
  const ForkLock lock;
  *dmabuf = GuardedFd(fd, lock);
  return {};
}

Error Device::Begin(DeviceRound* round, void* stream) {
  return executor_->Begin(round, stream) ? Error{} : Failed();
}

Error Device::Contribute(DeviceRound* round, uint64_t with_data) {
  return executor_->Contribute(round, with_data) ? Error{} : Failed();
}

Error Device::Fetch(DeviceRound* round, uint64_t offset, uint64_t bytes) {
  return executor_->Fetch(round, offset, bytes) ? Error{} : Failed();
}

Error Device::Arrived(DeviceRound* round, uint64_t offset, uint64_t bytes, bool* complete) {
  return executor_->Arrived(round, offset, bytes, complete) ? Error{} : Failed();
}

Error Device::WaitOn(DeviceRound* round, void* stream) {
  return executor_->WaitOn(round, stream) ? Error{} : Failed();
}

void Device::End(DeviceRound* round) { executor_->End(round); }

}  // namespace addend::client
