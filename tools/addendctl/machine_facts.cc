#include "tools/addendctl/machine_facts.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "lib/base/fd.h"
#include "lib/base/strings.h"
#include "lib/rpc/local_address.h"
#include "lib/transport/rdma/device.h"

namespace addend {
namespace {

constexpr size_t kRegistered = 64'000'000;

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

LimitFacts ReadLimits() {
  const auto bytes = [](rlim_t limit) { return limit == RLIM_INFINITY ? kUnlimited : limit; };
  LimitFacts facts;
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) == 0) facts.memlock_bytes = bytes(limit.rlim_cur);
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    facts.nofile = bytes(limit.rlim_cur);
    facts.nofile_hard = bytes(limit.rlim_max);
  }
  return facts;
}

// Checks whether the NIC can register as much memory as a larger tensor has; returns the error or
// an empty string.
std::string RegistrationError(rdma::Device* device) {
  void* const memory =
      ::mmap(nullptr, kRegistered, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return std::strerror(errno);
  std::string error;
  {
    const auto registered = device->Register(
        Bytes(static_cast<const std::byte*>(memory), kRegistered), rdma::Access::kPeerWrites);
    if (!registered.ok()) error = Message(registered.status());
  }
  ::munmap(memory, kRegistered);
  return error;
}

RdmaFacts ReadRdma() {
  RdmaFacts facts;
  const auto devices = rdma::OpenDevices({});
  if (!devices.ok()) {
    facts.why_none = Message(devices.status());
    facts.denied = absl::IsPermissionDenied(devices.status());
    return facts;
  }
  for (const auto& device : *devices) {
    const rdma::PortAddress& port = device->address();
    facts.ports.push_back({.device = port.device,
                           .fabric = std::string(rdma::Name(port.fabric)),
                           .gid = rdma::FormatGid(port.gid),
                           .mtu_bytes = port.mtu_bytes,
                           .registration_error = RegistrationError(device.get())});
  }
  return facts;
}

GpuFacts ReadGpus() {
  GpuFacts facts;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", ignored)) {
    const std::string name = entry.path().filename();
    int number = 0;
    if (absl::StartsWith(name, "nvidia") && absl::SimpleAtoi(name.substr(6), &number)) {
      facts.devices.push_back(entry.path());
    }
  }
  // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat ...": takes the first number.
  const std::string line = FirstLine("/proc/driver/nvidia/version");
  for (const std::string& word :
       std::vector<std::string>(absl::StrSplit(line, ' ', absl::SkipEmpty()))) {
    const bool number = word.find_first_not_of("0123456789.") == std::string::npos;
    if (number && word.find('.') != std::string::npos) {
      facts.driver = word;
      break;
    }
  }
  return facts;
}

std::string SharedMemoryError() {
  const UniqueFd fd(::memfd_create("addendctl-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return absl::StrFormat("memfd_create: %s", std::strerror(errno));
  constexpr size_t kBytes = 1 << 20;
  if (::ftruncate(fd.get(), kBytes) != 0) {
    return absl::StrFormat("ftruncate: %s", std::strerror(errno));
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return absl::StrFormat("F_ADD_SEALS: %s", std::strerror(errno));
  }
  void* const memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return absl::StrFormat("mmap: %s", std::strerror(errno));
  std::memset(memory, 1, kBytes);
  ::munmap(memory, kBytes);
  return "";
}

std::string InterfaceOf(const std::string& address) {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return "";
  std::string name;
  for (const ifaddrs* i = all; i != nullptr && name.empty(); i = i->ifa_next) {
    if (i->ifa_addr == nullptr) continue;
    char text[INET6_ADDRSTRLEN] = "";
    if (i->ifa_addr->sa_family == AF_INET) {
      ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(i->ifa_addr)->sin_addr, text,
                  sizeof(text));
    } else if (i->ifa_addr->sa_family == AF_INET6) {
      ::inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(i->ifa_addr)->sin6_addr, text,
                  sizeof(text));
    }
    // A link-local address contains its interface: fe80::1%eth0.
    if (text[0] != 0 && address.substr(0, address.find('%')) == text) name = i->ifa_name;
  }
  ::freeifaddrs(all);
  return name;
}

InterfaceFacts ReadInterface(const HostPort& peer) {
  InterfaceFacts facts;
  const auto address = LocalAddressTowards(peer);
  if (!address.ok()) {
    facts.error = Message(address.status());
    return facts;
  }
  facts.address = *address;
  facts.loopback = IsLoopback(*address);
  facts.name = InterfaceOf(*address);
  facts.speed_bps = LinkSpeedOf(*address);
  [[maybe_unused]] const bool known =
      absl::SimpleAtoi(FirstLine("/sys/class/net/" + facts.name + "/mtu"), &facts.mtu_bytes);
  return facts;
}

// Returns whether a service could not listen on the port. SO_REUSEADDR permits closed connections
// on it.
bool IsTaken(uint16_t port) {
  const UniqueFd fd(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  const int no = 0;
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(port);
  if (fd.valid()) {
    ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
    if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&v6), sizeof(v6)) == 0) return false;
    if (errno == EADDRINUSE) return true;
  }
  // For a machine without IPv6.
  const UniqueFd old(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ::setsockopt(old.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(port);
  return ::bind(old.get(), reinterpret_cast<const sockaddr*>(&v4), sizeof(v4)) != 0 &&
         errno == EADDRINUSE;
}

std::vector<PortFacts> ReadPorts() {
  std::vector<PortFacts> ports;
  struct Service {
    const char* name;
    uint16_t first;
    bool has_data;
  };
  constexpr Service kServices[] = {{"addend-scheduler", 7070, false},
                                   {"addend-summation", 7170, true},
                                   {"addend-agent", 7270, true}};
  for (const Service& service : kServices) {
    const auto add = [&](uint16_t offset, const char* what) {
      const auto port = static_cast<uint16_t>(service.first + offset);
      ports.push_back({port, absl::StrFormat("%s of %s", what, service.name), IsTaken(port)});
    };
    add(0, "gRPC");
    if (service.has_data) add(1, "data");
    add(10, "HTTP");
    add(11, "health");
  }
  return ports;
}

SocketFacts ReadSocket(const std::string& path) {
  SocketFacts facts{.path = path, .error = ""};
  if (path.empty()) return facts;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    facts.error = "its path is too long for a socket";
    return facts;
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  const UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    facts.error = std::strerror(errno);
  }
  return facts;
}

}  // namespace

MachineFacts ReadMachine(const MachineQuestion& question) {
  MachineFacts facts;
  facts.limits = ReadLimits();
  if (question.rdma) facts.rdma = ReadRdma();
  facts.gpu = ReadGpus();
  facts.memory = ReadMemory();
  facts.shared_memory_error = SharedMemoryError();
  facts.interface = ReadInterface(question.scheduler);
  facts.ports = ReadPorts();
  facts.socket = ReadSocket(question.socket);
  return facts;
}

}  // namespace addend
