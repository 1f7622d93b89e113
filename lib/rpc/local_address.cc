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

#include "absl/strings/str_format.h"
#include "lib/base/fd.h"

namespace addend {
namespace {

std::string NumericHost(const sockaddr* address, socklen_t length) {
  char host[NI_MAXHOST];
  if (::getnameinfo(address, length, host, sizeof(host), nullptr, 0, NI_NUMERICHOST) != 0)
    return "";
  return host;
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

double LinkSpeedOf(const std::string& address) {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return 0;
  double speed = 0;
  for (const ifaddrs* i = all; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr) continue;
    const int family = i->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (NumericHost(i->ifa_addr, length) == address) speed = SpeedOfInterface(i->ifa_name);
  }
  ::freeifaddrs(all);
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
