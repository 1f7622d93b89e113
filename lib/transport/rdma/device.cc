// Chooses NICs: all with an active port, or the named NICs; of each port's GID table the preferred
// entry. A NIC counts only if memory can be registered, which containers often forbid: better to
// know that before a job runs. The reasons against all NICs are collected, because the user sees
// only the final error.

#include "lib/transport/rdma/device.h"

#include <fcntl.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "lib/base/log.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/memory/arena.h"

namespace addend::rdma {
namespace {

// The least memory of a link: registered at the start to check that registration is allowed.
constexpr size_t kProbeBytes = 1 << 20;
constexpr int kProbeCompletions = 1024;
// GID entries in use on all ports of a device, at most. The kernel takes at most 64 KiB for them.
constexpr size_t kGidEntriesMax = 1024;

// Ranks entries of the GID table; the largest is preferred.
int Preference(const ibv_gid_entry& entry) {
  Gid gid;
  std::memcpy(gid.data(), entry.gid.raw, gid.size());
  switch (entry.gid_type) {
    case IBV_GID_TYPE_ROCE_V2:
      return 3 + static_cast<int>(KindOf(gid));
    case IBV_GID_TYPE_ROCE_V1:
      return 1;
    default:
      return 2;
  }
}

Fabric FabricOf(uint32_t gid_type) {
  switch (gid_type) {
    case IBV_GID_TYPE_ROCE_V2:
      return Fabric::kRoceV2;
    case IBV_GID_TYPE_ROCE_V1:
      return Fabric::kRoceV1;
    default:
      return Fabric::kInfiniBand;
  }
}

// "mlx5_0:1" is port 1 of mlx5_0; 0: any port. A suffix that is not a port number stays a part of
// the name, which then matches no device.
std::pair<std::string, int> SplitName(const std::string& name) {
  const size_t colon = name.find(':');
  int port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(name.substr(colon + 1), &port) || port < 1 ||
      port > UINT8_MAX) {
    return {name, 0};
  }
  return {name.substr(0, colon), port};
}

// Explains an empty device list: libibverbs lists only devices that it can use, so the kernel may
// have others.
absl::Status WhyNoDevice() {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/class/infiniband", error)) {
    names.push_back(entry.path().filename());
  }
  if (names.empty()) return absl::NotFoundError("this machine has no RDMA device");
  const bool visible = std::filesystem::exists("/dev/infiniband/uverbs0", error);
  return absl::PermissionDeniedError(absl::StrFormat(
      "%s of this machine cannot be used: %s", absl::StrJoin(names, ", "),
      visible ? "the provider library for it is missing (ibverbs-providers), or the device is "
                "another container's"
              : "there is no /dev/infiniband (a device plugin gives it to a container)"));
}

struct DeviceList {
  DeviceList() : devices(ibv_get_device_list(&count)) {}
  ~DeviceList() {
    if (devices != nullptr) ibv_free_device_list(devices);
  }
  int count = 0;
  ibv_device** const devices;
};

// Collects the usable devices, and the reasons why other devices are not usable.
struct Search {
  Devices found;
  std::vector<std::string> reasons;
  bool denied = false;

  void Take(ibv_device* device, int wanted_port, const DeviceOptions& options) {
    for (int port = std::max(1, wanted_port);; ++port) {
      auto opened = Device::Open(device, static_cast<uint8_t>(port), options);
      if (absl::IsOutOfRange(opened.status()) && wanted_port == 0) break;
      if (opened.ok()) {
        found.push_back(*std::move(opened));
      } else {
        reasons.push_back(Message(opened.status()));
        denied = denied || absl::IsPermissionDenied(opened.status()) ||
                 absl::IsResourceExhausted(opened.status());
        if (absl::IsPermissionDenied(opened.status())) break;
      }
      if (wanted_port != 0) break;
    }
  }
};

}  // namespace

absl::StatusOr<Devices> OpenDevices(const DeviceOptions& options) {
  const DeviceList list;
  if (list.devices == nullptr || list.count == 0) return WhyNoDevice();
  Search search;
  std::vector<std::string> all;
  for (int i = 0; i < list.count; ++i) all.push_back(ibv_get_device_name(list.devices[i]));
  const std::vector<std::string>& wanted = options.names.empty() ? all : options.names;
  for (const std::string& name : wanted) {
    const auto [device, port] = SplitName(name);
    const auto at = std::find(all.begin(), all.end(), device);
    if (at == all.end()) {
      search.reasons.push_back(
          absl::StrFormat("there is no device %s (there is %s)", device, absl::StrJoin(all, ", ")));
      continue;
    }
    search.Take(list.devices[at - all.begin()], port, options);
  }
  if (!search.found.empty()) return std::move(search.found);
  const std::string why = absl::StrJoin(search.reasons, "; ");
  return search.denied ? absl::PermissionDeniedError(why) : absl::NotFoundError(why);
}

// OUT_OF_RANGE: the device has no such port.
absl::StatusOr<std::shared_ptr<Device>> Device::Open(ibv_device* device, uint8_t port,
                                                     const DeviceOptions& options) {
  const std::string name = ibv_get_device_name(device);
  ibv_context* const context = ibv_open_device(device);
  if (context == nullptr) {
    return absl::PermissionDeniedError(absl::StrFormat(
        "%s cannot be opened: %s (a container needs /dev/infiniband, as a device plugin gives it)",
        name, std::strerror(errno)));
  }
  std::shared_ptr<Device> opened(new Device(context, port, options.traffic_class));
  ibv_port_attr attributes{};
  if (ibv_query_port(context, port, &attributes) != 0) {
    return absl::OutOfRangeError(absl::StrFormat("%s has no port %d", name, port));
  }
  opened->address_.device = absl::StrFormat("%s:%d", name, port);
  ADDEND_RETURN_IF_ERROR(opened->ReadPort(attributes));
  ADDEND_RETURN_IF_ERROR(opened->ChooseGid(options.gid_index));
  ADDEND_RETURN_IF_ERROR(opened->Begin());
  ObserveUnmapping(opened);
  return opened;
}

absl::Status Device::ReadPort(const ibv_port_attr& attributes) {
  if (attributes.state != IBV_PORT_ACTIVE) {
    return absl::UnavailableError(absl::StrFormat("port %s is not active (%s)", name(),
                                                  ibv_port_state_str(attributes.state)));
  }
  mtu_ = attributes.active_mtu;
  address_.mtu_bytes = 128u << mtu_;
  address_.lid = attributes.lid;
  largest_write_ = attributes.max_msg_sz;
  return absl::OkStatus();
}

absl::Status Device::ChooseGid(int wanted) {
  std::vector<ibv_gid_entry> entries(kGidEntriesMax);
  const ssize_t count = ibv_query_gid_table(context_.get(), entries.data(), entries.size(), 0);
  if (count < 0) {
    return absl::InternalError(absl::StrFormat("the GID table of %s cannot be read: %s", name(),
                                               std::strerror(static_cast<int>(-count))));
  }
  entries.resize(static_cast<size_t>(count));
  std::erase_if(entries, [&](const ibv_gid_entry& entry) {
    return entry.port_num != port_ || entry.gid_index > UINT8_MAX ||
           (wanted >= 0 && entry.gid_index != static_cast<uint32_t>(wanted));
  });
  const auto best =
      std::max_element(entries.begin(), entries.end(),
                       [](const auto& a, const auto& b) { return Preference(a) < Preference(b); });
  if (best == entries.end()) {
    return absl::NotFoundError(
        wanted >= 0 ? absl::StrFormat("the GID table of %s has no entry %d", name(), wanted)
                    : absl::StrFormat("the GID table of %s is empty: its network interface has no "
                                      "address",
                                      name()));
  }
  gid_index_ = static_cast<uint8_t>(best->gid_index);
  address_.fabric = FabricOf(best->gid_type);
  std::memcpy(address_.gid.data(), best->gid.raw, address_.gid.size());
  return absl::OkStatus();
}

absl::Status Device::Begin() {
  ADDEND_RETURN_IF_ERROR(Probe());
  const int fd = context_->async_fd;
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  ADDEND_ASSIGN_OR_RETURN(loop_, EventLoop::Start("rdma-events"));
  absl::Status status;
  loop_->Run([&] { status = loop_->Watch(fd, EPOLLIN, this); });
  return status;
}

// Checks at the start that links can be made, so that missing permissions or resources are reported
// early.
absl::Status Device::Probe() {
  ADDEND_ASSIGN_OR_RETURN(const auto memory, Arena::Create(kProbeBytes));
  ADDEND_RETURN_IF_ERROR(Register(memory->memory(), Access::kReceive).status());
  const Owned<ibv_comp_channel> channel(ibv_create_comp_channel(context_.get()));
  Owned<ibv_cq> queue;
  if (channel != nullptr) {
    queue.reset(ibv_create_cq(context_.get(), kProbeCompletions, nullptr, channel.get(), 0));
  }
  if (queue != nullptr) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrFormat("%s gives no completion queue: %s (the limit of locked memory is %s)", name(),
                      std::strerror(errno), LockedMemoryLimit()));
}

Device::~Device() {
  if (loop_ != nullptr) loop_->Stop();
}

absl::StatusOr<std::shared_ptr<Domain>> Device::DomainOf(uint64_t owner) {
  MutexLock lock(&mu_);
  std::erase_if(domains_, [owner](const auto& entry) {
    return entry.first != owner && entry.second.use_count() == 1 && entry.second->empty();
  });
  std::shared_ptr<Domain>& domain = domains_[owner];
  if (domain != nullptr) return domain;
  auto made = Domain::Create(context_.get(), name(), &registered_bytes_);
  if (!made.ok()) {
    domains_.erase(owner);
    return made.status();
  }
  return domain = *std::move(made);
}

absl::StatusOr<Registered> Device::Register(Bytes memory, Access access) {
  ADDEND_ASSIGN_OR_RETURN(const auto domain, DomainOf(kSelf));
  return domain->Register(memory, access);
}

void Device::BeforeUnmap(const Mapping& mapping) {
  MutexLock lock(&mu_);
  for (auto& [owner, domain] : domains_) domain->Forget(mapping.memory);
}

std::shared_ptr<Device::FailureListener> Device::OnFailure(TellFn tell) {
  auto listener = std::make_shared<FailureListener>(std::move(tell));
  MutexLock lock(&mu_);
  std::erase_if(listeners_, [](const auto& weak) { return weak.expired(); });
  listeners_.push_back(listener);
  return listener;
}

void Device::OnReady(uint32_t) {
  ibv_async_event event{};
  while (ibv_get_async_event(context_.get(), &event) == 0) {
    OnEvent(event);
    ibv_ack_async_event(&event);
  }
}

void Device::OnEvent(const ibv_async_event& event) {
  uint32_t queue_pair = 0;
  switch (event.event_type) {
    case IBV_EVENT_PORT_ACTIVE:
      if (event.element.port_num != port_) return;
      active_ = true;
      return spdlog::info("the RDMA port {} is active again", name());
    case IBV_EVENT_PORT_ERR:
      if (event.element.port_num != port_) return;
      active_ = false;
      break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
      queue_pair = event.element.qp->qp_num;
      break;
    case IBV_EVENT_CQ_ERR:
      break;
    case IBV_EVENT_DEVICE_FATAL:
      active_ = false;
      break;
    default:
      return;
  }
  const absl::Status why = absl::UnavailableError(
      absl::StrFormat("%s: %s", name(), ibv_event_type_str(event.event_type)));
  spdlog::warn("RDMA: {}", Message(why));
  std::vector<std::shared_ptr<FailureListener>> listeners;
  {
    MutexLock lock(&mu_);
    for (const auto& weak : listeners_) {
      if (auto listener = weak.lock()) listeners.push_back(std::move(listener));
    }
  }
  for (const auto& listener : listeners) listener->Tell(queue_pair, why);
}

}  // namespace addend::rdma
