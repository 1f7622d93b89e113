#include "lib/intranode/nvml.h"

#include <dlfcn.h>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"
#include "lib/intranode/topology.h"

namespace addend {
namespace {

// The part of NVML's ABI in use; CUDA's runtime has no header for it.
using Device = void*;
struct PciInfo {
  char bus_id_legacy[16];
  unsigned int domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};
constexpr int kSuccess = 0;
constexpr unsigned int kMaxLinks = 18;
constexpr unsigned int kActive = 1;
constexpr int kRemoteIsGpu = 0;
constexpr int kRemoteIsSwitch = 2;

class Nvml {
 public:
  Nvml() = default;
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;
  ~Nvml() {
    if (started_) shutdown_();
    if (library_ != nullptr) dlclose(library_);
  }

  absl::Status Start() {
    library_ = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) {
      return absl::UnavailableError("NVIDIA's driver (libnvidia-ml.so.1) is not there");
    }
    if (!Load("nvmlInit_v2", &init_) || !Load("nvmlShutdown", &shutdown_) ||
        !Load("nvmlDeviceGetCount_v2", &count_) ||
        !Load("nvmlDeviceGetHandleByIndex_v2", &device_) ||
        !Load("nvmlDeviceGetPciInfo_v3", &pci_info_) ||
        !Load("nvmlDeviceGetNvLinkState", &link_state_) ||
        !Load("nvmlDeviceGetNvLinkRemotePciInfo_v2", &remote_pci_) ||
        !Load("nvmlDeviceGetNvLinkRemoteDeviceType", &remote_type_)) {
      return absl::UnavailableError(
          "NVIDIA's driver is older than 470 and does not tell of NVLink");
    }
    const int error = init_();
    started_ = error == kSuccess;
    if (started_) return absl::OkStatus();
    return absl::UnavailableError(
        absl::StrFormat("NVIDIA's driver does not answer (NVML's error %d)", error));
  }

  std::vector<NvlinkEnd> Ends() const {
    unsigned int count = 0;
    if (count_(&count) != kSuccess) return {};
    std::vector<NvlinkEnd> ends;
    for (unsigned int i = 0; i < count; ++i) {
      Device device = nullptr;
      PciInfo pci = {};
      if (device_(i, &device) != kSuccess || pci_info_(device, &pci) != kSuccess) continue;
      ends.push_back({.bus_id = NormalBusId(pci.bus_id), .peers = {}});
      for (unsigned int link = 0; link < kMaxLinks; ++link) Follow(device, link, &ends.back());
    }
    return ends;
  }

 private:
  template <typename Function>
  bool Load(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(library_, name));
    return *function != nullptr;
  }

  void Follow(Device device, unsigned int link, NvlinkEnd* end) const {
    unsigned int state = 0;
    if (link_state_(device, link, &state) != kSuccess || state != kActive) return;
    int type = -1;
    if (remote_type_(device, link, &type) != kSuccess) return;
    if (type == kRemoteIsSwitch) ++end->to_switches;
    PciInfo peer = {};
    if (type == kRemoteIsGpu && remote_pci_(device, link, &peer) == kSuccess) {
      end->peers.push_back(NormalBusId(peer.bus_id));
    }
  }

  void* library_ = nullptr;
  bool started_ = false;
  int (*init_)() = nullptr;
  int (*shutdown_)() = nullptr;
  int (*count_)(unsigned int*) = nullptr;
  int (*device_)(unsigned int, Device*) = nullptr;
  int (*pci_info_)(Device, PciInfo*) = nullptr;
  int (*link_state_)(Device, unsigned int, unsigned int*) = nullptr;
  int (*remote_pci_)(Device, unsigned int, PciInfo*) = nullptr;
  int (*remote_type_)(Device, unsigned int, int*) = nullptr;
};

}  // namespace

absl::StatusOr<std::vector<NvlinkEnd>> ReadNvlinks() {
  Nvml nvml;
  ADDEND_RETURN_IF_ERROR(nvml.Start());
  return nvml.Ends();
}

}  // namespace addend
