#include "bench/tcp_pair.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_format.h"

namespace addend {
namespace {

absl::Status CannotPair(const char* what) {
  return absl::InternalError(absl::StrFormat("%s: %s", what, std::strerror(errno)));
}

}  // namespace

absl::StatusOr<std::pair<UniqueFd, UniqueFd>> ConnectTcpPair() {
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  UniqueFd one(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener.get(), generic, size) != 0 || ::listen(listener.get(), 1) != 0 ||
      ::getsockname(listener.get(), generic, &size) != 0 ||
      ::connect(one.get(), generic, size) != 0) {
    return CannotPair("cannot connect over 127.0.0.1");
  }
  UniqueFd other(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!other.valid()) return CannotPair("cannot accept a connection over 127.0.0.1");
  return std::pair(std::move(one), std::move(other));
}

}  // namespace addend
