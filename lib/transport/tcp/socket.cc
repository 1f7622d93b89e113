#include "lib/transport/tcp/socket.h"

#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_format.h"
#include "lib/base/strings.h"

namespace addend::tcp {
namespace {

// TCP_RTO_MIN_US, since Linux 6.15; the headers of older systems do not name it.
constexpr int kTcpRtoMinUs = 45;
// As long as a receiver may hold an acknowledgement back.
constexpr int kRtoMinUs = 40'000;

// An option that this kernel does not know is left at its default.
void SetOption(int fd, int level, int name, int value) {
  ::setsockopt(fd, level, name, &value, sizeof(value));
}

}  // namespace

absl::StatusOr<UniqueFd> ListenOn(const Address& bind, uint16_t* port) {
  const auto refuse = [&](std::string_view why) {
    return absl::InvalidArgumentError(absl::StrFormat("cannot listen on %s:%d for data: %s",
                                                      bind.host.empty() ? "*" : bind.host,
                                                      bind.port, why));
  };
  const auto addresses = Resolve(bind, /*passive=*/true);
  if (!addresses.ok()) return refuse(Message(addresses.status()));
  const SocketAddress& address = addresses->front();
  UniqueFd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return refuse(std::strerror(errno));
  SetOption(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (::bind(fd.get(), address.get(), address.length) != 0 || ::listen(fd.get(), 1024) != 0) {
    return refuse(std::strerror(errno));
  }
  sockaddr_storage bound{};
  socklen_t length = sizeof(bound);
  ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &length);
  *port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                            : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
  return fd;
}

absl::StatusOr<UniqueFd> StartConnect(const SocketAddress& address, const Address& peer) {
  UniqueFd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid())
    return absl::ResourceExhaustedError(absl::StrFormat("socket: %s", std::strerror(errno)));
  if (::connect(fd.get(), address.get(), address.length) != 0 && errno != EINPROGRESS) {
    return absl::UnavailableError(
        absl::StrFormat("cannot connect to %s:%d: %s", peer.host, peer.port, std::strerror(errno)));
  }
  return fd;
}

absl::Status ConnectResult(int fd, const Address& peer) {
  int error = 0;
  socklen_t length = sizeof(error);
  ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
  if (error == 0) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrFormat("cannot connect to %s:%d: %s", peer.host, peer.port, std::strerror(error)));
}

void Tune(int fd, int unsent_bytes_max) {
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, 5);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, 2);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, 5);
  SetOption(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, unsent_bytes_max);
  // If a switch drops the last segments of a round, no others follow that tell of the loss. TCP
  // waits for this time beyond a round trip then, by default for 200 ms. A system may have less.
  int rto_min_us = 0;
  socklen_t length = sizeof(rto_min_us);
  ::getsockopt(fd, IPPROTO_TCP, kTcpRtoMinUs, &rto_min_us, &length);
  if (rto_min_us > kRtoMinUs) SetOption(fd, IPPROTO_TCP, kTcpRtoMinUs, kRtoMinUs);
}

void LimitUnacknowledged(int fd, size_t bytes) {
  constexpr size_t kLeast = 32 << 10;
  // The kernel doubles the value, to allow for its own overhead, which is small here.
  SetOption(fd, SOL_SOCKET, SO_SNDBUF,
            static_cast<int>(std::clamp(bytes, kLeast, kUnacknowledgedMost) / 2));
}

std::string PeerName(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      ::getnameinfo(reinterpret_cast<sockaddr*>(&address), length, host, sizeof(host), port,
                    sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "a peer that is gone";
  }
  return absl::StrFormat("%s:%s", host, port);
}

absl::Duration BusyTime(int fd) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return absl::ZeroDuration();
  return absl::Microseconds(info.tcpi_busy_time);
}

}  // namespace addend::tcp
