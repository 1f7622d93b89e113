#include "bench/verbs_channel.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "lib/base/clock.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"

namespace addend::verbs {
namespace {

constexpr size_t kMessageBytesMost = 4096;
constexpr absl::Duration kConnectTimeout = absl::Seconds(10);
constexpr absl::Duration kSilenceMost = absl::Minutes(1);

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

absl::StatusOr<Addresses> Resolve(const HostPort& address, int flags) {
  addrinfo hints{};
  hints.ai_family = address.host.empty() ? AF_INET : AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(address.host.empty() ? nullptr : address.host.c_str(),
                                  std::to_string(address.port).c_str(), &hints, &found);
  if (error != 0) {
    return absl::NotFoundError(
        absl::StrFormat("there is no address %s: %s", address.ToString(), ::gai_strerror(error)));
  }
  return Addresses(found);
}

}  // namespace

Channel::Channel(UniqueFd fd) : fd_(std::move(fd)) {
  const timeval limit = absl::ToTimeval(kSilenceMost);
  ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
}

absl::StatusOr<UniqueFd> Listen(const HostPort& address) {
  ADDEND_ASSIGN_OR_RETURN(const Addresses info, Resolve(address, AI_PASSIVE));
  UniqueFd fd(::socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (!fd.valid() || ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      ::bind(fd.get(), info->ai_addr, info->ai_addrlen) != 0 || ::listen(fd.get(), 1) != 0) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("cannot listen on %s: %s", address.ToString(), std::strerror(errno)));
  }
  return fd;
}

absl::StatusOr<uint16_t> PortOf(const UniqueFd& listener) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return absl::InternalError(absl::StrFormat("a socket has no port: %s", std::strerror(errno)));
  }
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

absl::StatusOr<Channel> Channel::Accept(const UniqueFd& listener) {
  UniqueFd fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (fd.valid()) return Channel(std::move(fd));
  return absl::UnavailableError(
      absl::StrFormat("cannot accept a connection: %s", std::strerror(errno)));
}

absl::StatusOr<Channel> Channel::Connect(const HostPort& peer) {
  ADDEND_ASSIGN_OR_RETURN(const Addresses info, Resolve(peer, 0));
  const absl::Time last = SteadyNow() + kConnectTimeout;
  while (true) {
    UniqueFd fd(::socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (fd.valid() && ::connect(fd.get(), info->ai_addr, info->ai_addrlen) == 0) {
      return Channel(std::move(fd));
    }
    if (errno != ECONNREFUSED || SteadyNow() > last) {
      return absl::UnavailableError(
          absl::StrFormat("cannot connect to %s: %s", peer.ToString(), std::strerror(errno)));
    }
    absl::SleepFor(absl::Milliseconds(50));
  }
}

absl::Status Channel::Send(const Json& message) {
  // A message may quote names that are not valid UTF-8.
  const std::string line = message.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  for (size_t sent = 0; sent < line.size();) {
    const ssize_t part = ::send(fd_.get(), line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (part < 0 && errno == EINTR) continue;
    if (part < 0) {
      // The last message of the other end, if any, is the reason.
      ADDEND_RETURN_IF_ERROR(PeerFailure());
      return absl::UnavailableError(
          absl::StrFormat("the other end is gone: %s", std::strerror(errno)));
    }
    sent += static_cast<size_t>(part);
  }
  return absl::OkStatus();
}

void Channel::SendFailure(const absl::Status& why) {
  // A failure to send is ignored: the other end then has its own reason.
  (void)Send(Json{{"failure", Message(why)}});
}

absl::Status Channel::ReadSome(int flags) {
  char buffer[kMessageBytesMost];
  const ssize_t size = ::recv(fd_.get(), buffer, sizeof(buffer), flags);
  const bool waits = (flags & MSG_DONTWAIT) == 0;
  if (size < 0 && (errno == EINTR || (errno == EAGAIN && !waits))) return absl::OkStatus();
  if (size < 0 && errno == EAGAIN) {
    return absl::DeadlineExceededError(absl::StrFormat("the other end has said nothing for %s",
                                                       absl::FormatDuration(kSilenceMost)));
  }
  if (size <= 0 || received_.size() > kMessageBytesMost) {
    return absl::UnavailableError("the other end has closed the connection without a word");
  }
  received_.append(buffer, static_cast<size_t>(size));
  return absl::OkStatus();
}

absl::Status Channel::PeerFailure() {
  if (received_.find('\n') == std::string::npos) ADDEND_RETURN_IF_ERROR(ReadSome(MSG_DONTWAIT));
  const size_t end = received_.find('\n');
  if (end == std::string::npos) return absl::OkStatus();
  const Json message = Json::parse(received_.substr(0, end), nullptr, /*allow_exceptions=*/false);
  if (!message.is_object() || !message.contains("failure")) return absl::OkStatus();
  const Json& why = message["failure"];
  return absl::AbortedError(
      absl::StrFormat("the other end: %s", why.is_string() ? why.get<std::string>() : why.dump()));
}

absl::StatusOr<Json> Channel::Receive() {
  while (received_.find('\n') == std::string::npos) ADDEND_RETURN_IF_ERROR(ReadSome(0));
  ADDEND_RETURN_IF_ERROR(PeerFailure());
  const size_t end = received_.find('\n');
  Json message = Json::parse(received_.substr(0, end), nullptr, /*allow_exceptions=*/false);
  received_.erase(0, end + 1);
  return message;
}

}  // namespace addend::verbs
