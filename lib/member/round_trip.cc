#include "lib/member/round_trip.h"

#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/clock.h"
#include "lib/base/fd.h"
#include "lib/base/status_macros.h"
#include "lib/options/host_port.h"

namespace addend {
namespace {

constexpr absl::Duration kLongest = absl::Seconds(1);
constexpr absl::Duration kLongestConnection = absl::Milliseconds(300);
constexpr int kLookMs = 50;

using AddressInfo = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

absl::StatusOr<AddressInfo> Numeric(const std::string& address) {
  ADDEND_ASSIGN_OR_RETURN(const HostPort peer, ParseHostPort(address));
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(peer.port);
  if (::getaddrinfo(peer.host.c_str(), port.c_str(), &hints, &found) != 0) {
    return absl::InvalidArgumentError(absl::StrFormat("%s is no numeric address", address));
  }
  return AddressInfo(found, &::freeaddrinfo);
}

// Of a connection that is under way. False: it is not open by then.
bool AwaitOpen(int fd, absl::Time until, const std::function<bool()>& give_up) {
  pollfd wait{.fd = fd, .events = POLLOUT, .revents = 0};
  while (::poll(&wait, 1, kLookMs) <= 0) {
    if (SteadyNow() >= until || give_up()) return false;
  }
  int error = 0;
  socklen_t bytes = sizeof(error);
  return ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) == 0 && error == 0;
}

absl::StatusOr<absl::Duration> OneRoundTrip(const addrinfo& peer, const std::string& name,
                                            const std::function<bool()>& give_up) {
  const UniqueFd fd(::socket(peer.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return absl::UnavailableError("no socket for a measurement");
  // Closing leaves nothing behind, on either side.
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  const bool opened =
      ::connect(fd.get(), peer.ai_addr, peer.ai_addrlen) == 0 ||
      (errno == EINPROGRESS && AwaitOpen(fd.get(), SteadyNow() + kLongestConnection, give_up));
  tcp_info info{};
  socklen_t bytes = sizeof(info);
  if (!opened || ::getsockopt(fd.get(), IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) {
    return absl::UnavailableError(absl::StrFormat("%s does not answer", name));
  }
  return absl::Microseconds(std::max(info.tcpi_rtt, 1U));
}

}  // namespace

absl::StatusOr<absl::Duration> LeastRoundTrip(const std::string& address, int times,
                                              const std::function<bool()>& give_up) {
  ADDEND_ASSIGN_OR_RETURN(const AddressInfo peer, Numeric(address));
  const absl::Time until = SteadyNow() + kLongest;
  absl::Duration least = absl::InfiniteDuration();
  for (int i = 0; i < times && SteadyNow() < until; ++i) {
    if (give_up()) return absl::CancelledError("the measurement was given up");
    ADDEND_ASSIGN_OR_RETURN(const absl::Duration one, OneRoundTrip(*peer, address, give_up));
    least = std::min(least, one);
  }
  return least;
}

}  // namespace addend
