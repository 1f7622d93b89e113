#include "lib/telemetry/slow_clients.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <string_view>

#include "lib/base/fd.h"

namespace addend {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kBetweenLooks(500);

bool IsOn(int socket, uint16_t port) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (::getsockname(socket, any, &length) != 0) return false;
  if (any->sa_family == AF_INET6) {
    return ntohs(reinterpret_cast<sockaddr_in6*>(any)->sin6_port) == port;
  }
  return any->sa_family == AF_INET && ntohs(reinterpret_cast<sockaddr_in*>(any)->sin_port) == port;
}

// Empty: it has none.
std::string PeerOf(int socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0) return "";
  return {reinterpret_cast<const char*>(&address), length};
}

// Nobody has begun to read it.
bool HoldsWholeRequest(int socket) {
  char bytes[8192];
  const ssize_t got = ::recv(socket, bytes, sizeof(bytes), MSG_PEEK | MSG_DONTWAIT);
  return got > 0 && std::string_view(bytes, static_cast<size_t>(got)).find("\r\n\r\n") !=
                        std::string_view::npos;
}

}  // namespace

void EndConnections(uint16_t port, const SpareFn& spare) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    const int number = std::atoi(entry.path().filename().c_str());
    if (!IsOn(number, port)) continue;
    // One of its own: meanwhile the number may be given to another connection.
    const UniqueFd socket(::dup(number));
    if (socket.get() < 0 || !IsOn(socket.get(), port)) continue;
    const std::string peer = PeerOf(socket.get());
    if (!peer.empty() && !spare(socket.get(), peer)) ::shutdown(socket.get(), SHUT_RDWR);
  }
}

SlowClients::~SlowClients() {
  {
    MutexLock lock(&mu_);
    ended_ = true;
  }
  changed_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

void SlowClients::Watch(uint16_t port) {
  thread_ = std::thread([this, port] { Run(port); });
}

void SlowClients::Came() {
  MutexLock lock(&mu_);
  if (clients_++ == 0) changed_.NotifyAll();
}

void SlowClients::Went() {
  MutexLock lock(&mu_);
  --clients_;
}

void SlowClients::Run(uint16_t port) {
  std::map<std::string, Clock::time_point> since;  // of peers that were there at the last look
  while (true) {
    {
      MutexLock lock(&mu_);
      while (clients_ == 0 && !ended_) {
        since.clear();
        changed_.Wait(&mu_);
      }
      const auto next = Clock::now() + kBetweenLooks;
      while (!ended_ && changed_.WaitUntil(&mu_, next)) {
      }
      if (ended_) return;
    }
    const auto now = Clock::now();
    std::map<std::string, Clock::time_point> still;
    EndConnections(port, [&](int socket, const std::string& peer) {
      const auto known = since.find(peer);
      const bool waits = known == since.end() || HoldsWholeRequest(socket);
      const auto begin = still.emplace(peer, waits ? now : known->second).first->second;
      return now - begin < most_;
    });
    since = std::move(still);
  }
}

}  // namespace addend
