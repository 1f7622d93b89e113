#include "lib/rpc/local_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <set>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "lib/base/fd.h"

namespace addend {
namespace {

std::string NumericHost(const sockaddr* address, socklen_t length) {
  char host[NI_MAXHOST];
  if (::getnameinfo(address, length, host, sizeof(host), nullptr, 0, NI_NUMERICHOST) != 0)
    return "";
  return host;
}

struct InterfaceAddress {
  std::string interface;
  int family;  // AF_INET or AF_INET6
  std::string host;
  bool link_local;
};

// Empty if the kernel does not tell them.
std::vector<InterfaceAddress> InterfaceAddresses() {
  std::vector<InterfaceAddress> addresses;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return addresses;
  for (const ifaddrs* i = all; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr) continue;
    const int family = i->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    const bool link_local =
        family == AF_INET6 &&
        IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(i->ifa_addr)->sin6_addr);
    addresses.push_back({i->ifa_name, family, NumericHost(i->ifa_addr, length), link_local});
  }
  ::freeifaddrs(all);
  return addresses;
}

double SpeedOfInterface(const std::string& name) {
  double megabits = 0;
  std::ifstream("/sys/class/net/" + name + "/speed") >> megabits;
  return megabits > 0 ? megabits * 1e6 : 0;
}

}  // namespace

absl::StatusOr<std::string> LocalAddressTowards(const HostPort& peer) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(peer.port);
  if (const int error = ::getaddrinfo(peer.host.c_str(), port.c_str(), &hints, &found);
      error != 0) {
    return absl::UnavailableError(
        absl::StrFormat("cannot resolve '%s': %s", peer.host, ::gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> info(found, ::freeaddrinfo);
  // Connecting a datagram socket only looks up the route.
  const UniqueFd fd(::socket(info->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage local{};
  socklen_t length = sizeof(local);
  if (!fd.valid() || ::connect(fd.get(), info->ai_addr, info->ai_addrlen) != 0 ||
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&local), &length) != 0) {
    return absl::UnavailableError(
        absl::StrFormat("there is no route to %s: %s", peer.ToString(), std::strerror(errno)));
  }
  return NumericHost(reinterpret_cast<sockaddr*>(&local), length);
}

absl::StatusOr<std::string> AddressOfInterface(const std::string& name) {
  std::set<std::string> names;
  std::string v4, v6;
  for (const InterfaceAddress& one : InterfaceAddresses()) {
    names.insert(one.interface);
    if (one.interface != name || one.link_local) continue;
    std::string& kept = one.family == AF_INET ? v4 : v6;
    if (kept.empty()) kept = one.host;
  }
  if (!v4.empty()) return v4;
  if (!v6.empty()) return v6;
  return absl::InvalidArgumentError(absl::StrFormat(
      "there is no interface '%s' with an address here: there %s %s", name,
      names.size() == 1 ? "is" : "are", names.empty() ? "none" : absl::StrJoin(names, ", ")));
}

double LinkSpeedOf(const std::string& address) {
  double speed = 0;
  for (const InterfaceAddress& one : InterfaceAddresses()) {
    if (one.host == address) speed = SpeedOfInterface(one.interface);
  }
  return speed;
}

bool IsLoopback(const std::string& host) {
  if (host == "localhost") return true;
  in_addr v4{};
  if (::inet_pton(AF_INET, host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  in6_addr v6{};
  return ::inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

std::string Hostname() {
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

}  // namespace addend
