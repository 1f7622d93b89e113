#include "bench/process_cpu.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

#include <cstring>

#include "lib/base/fd.h"

namespace addend {

std::optional<double> ProcessCpuSeconds(pid_t pid) {
  clockid_t clock;
  timespec time;
  if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &time) != 0)
    return std::nullopt;
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

std::optional<pid_t> ServerOfSocket(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return std::nullopt;
  std::memcpy(address.sun_path, path.data(), path.size());
  const UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (!fd.valid() ||
      connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.pid == 0) {
    return std::nullopt;
  }
  return peer.pid;
}

}  // namespace addend
