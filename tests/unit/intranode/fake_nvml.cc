#include "tests/unit/intranode/fake_nvml.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>

namespace addend {

FakeNvml& TheFakeNvml() {
  static FakeNvml fake;
  return fake;
}

}  // namespace addend

namespace {

constexpr int kSuccess = 0;
constexpr int kInvalidArgument = 2;
constexpr int kNotSupported = 3;

struct PciInfo {
  char bus_id_legacy[16];
  unsigned int domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};

// The far end of a link of a GPU.
struct End {
  int gpu;
  bool active;
};

int NumberOf(void* device) { return static_cast<int>(reinterpret_cast<intptr_t>(device)) - 1; }

std::optional<End> FarEnd(void* device, unsigned int link) {
  const addend::FakeNvml& fake = addend::TheFakeNvml();
  const int gpu = NumberOf(device);
  unsigned int own = 0;
  for (size_t i = 0; i < fake.links.size(); ++i) {
    const auto [a, b] = fake.links[i];
    if ((a != gpu && b != gpu) || own++ != link) continue;
    const bool down =
        std::find(fake.down.begin(), fake.down.end(), static_cast<int>(i)) != fake.down.end();
    return End{a == gpu ? b : a, !down};
  }
  return std::nullopt;
}

int Write(int gpu, PciInfo* info) {
  const auto& ids = addend::TheFakeNvml().bus_ids;
  std::snprintf(info->bus_id, sizeof(info->bus_id), "%s", ids[static_cast<size_t>(gpu)].c_str());
  return kSuccess;
}

}  // namespace

extern "C" {

int nvmlInit_v2() { return addend::TheFakeNvml().init_error; }
int nvmlShutdown() { return kSuccess; }

int nvmlDeviceGetCount_v2(unsigned int* count) {
  *count = static_cast<unsigned int>(addend::TheFakeNvml().bus_ids.size());
  return kSuccess;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void** device) {
  *device = reinterpret_cast<void*>(static_cast<intptr_t>(index) + 1);
  return kSuccess;
}

int nvmlDeviceGetPciInfo_v3(void* device, PciInfo* info) { return Write(NumberOf(device), info); }

int nvmlDeviceGetNvLinkState(void* device, unsigned int link, unsigned int* active) {
  const std::optional<End> end = FarEnd(device, link);
  if (!end) return kNotSupported;
  *active = end->active ? 1 : 0;
  return kSuccess;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void* device, unsigned int link, int* type) {
  const std::optional<End> end = FarEnd(device, link);
  if (!end) return kInvalidArgument;
  *type = end->gpu == addend::FakeNvml::kSwitch ? 2 : 0;
  return kSuccess;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void* device, unsigned int link, PciInfo* info) {
  const std::optional<End> end = FarEnd(device, link);
  if (!end || end->gpu == addend::FakeNvml::kSwitch) return kInvalidArgument;
  return Write(end->gpu, info);
}

}  // extern "C"
