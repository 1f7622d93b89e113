// The gRPC server that every Addend service runs: explicit limits, health, reflection, no silent
// sharing of a port.
#pragma once

#include <grpcpp/server.h>

#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/fd.h"
#include "lib/options/host_port.h"
#include "lib/rpc/tls.h"

namespace addend {

// Larger answers are not sent, and clients refuse them, unless they set another limit.
inline constexpr int kMaxAnswerBytes = 64 << 20;
// Limit for the scheduler's messages to its members: an update of a server lists its partitions of
// all jobs. The largest possible message; the declarations of tensors are bounded instead.
inline constexpr int kMaxUpdateBytes = std::numeric_limits<int>::max();
// Limit per client connection, which the members of a process share.
inline constexpr int kMaxStreams = 1000;

// Reserves an address for an RpcServer that will listen on it later. While it lives, the kernel
// gives the port to no other process and refuses connections at once. Port 0 needs no reservation.
class ReservedAddress {
 public:
  // InvalidArgument if another process listens on the address or it cannot be bound; reports that
  // before the server starts.
  static absl::StatusOr<ReservedAddress> Take(const HostPort& address);

 private:
  std::vector<UniqueFd> sockets_;  // bound with port sharing, so that the server can listen on the
                                   // same address
};

// Serves only grpc.health.v1, which answers for "" (alive) and "readiness" (SetReady), without TLS,
// which probes do not support. Serves from Start until destruction, on gRPC's threads.
class HealthServer {
 public:
  // Not ready until SetReady(true). InvalidArgument if it cannot listen on the address.
  static absl::StatusOr<std::unique_ptr<HealthServer>> Start(const HostPort& listen);
  ~HealthServer();
  HealthServer(const HealthServer&) = delete;
  HealthServer& operator=(const HealthServer&) = delete;

  uint16_t port() const { return port_; }
  // From any thread.
  void SetReady(bool ready);

 private:
  friend class RpcServer;
  HealthServer() = default;
  void End(std::chrono::steady_clock::time_point deadline);

  std::unique_ptr<grpc::Server> server_;  // null after the end
  uint16_t port_ = 0;
};

// Serves from Start until destruction, on gRPC's threads. Answers grpc.health.v1 as HealthServer
// does, on the main port and on the health-only port.
class RpcServer {
 public:
  struct Options {
    HostPort listen;
    std::optional<HostPort> health_listen = std::nullopt;
    int max_request_bytes =
        64 << 10;  // Requests are short, except those of members to the scheduler.
    int max_answer_bytes = kMaxAnswerBytes;
  };

  // `services` stay the caller's and must outlive the server. Not ready until SetReady(true).
  // InvalidArgument if it cannot listen on an address. `tls` is its identity; null: plain text,
  // which the health-only port always uses.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(
      const Options& options, const std::vector<grpc::Service*>& services,
      const TlsIdentity* tls = ProcessIdentity());
  // Refuses new calls, lets running calls end for 1 s, then cancels them and waits for their
  // handlers. So a handler of a stream has to check ServerContext::IsCancelled at least that often.
  ~RpcServer();
  RpcServer(const RpcServer&) = delete;
  RpcServer& operator=(const RpcServer&) = delete;

  uint16_t port() const { return port_; }
  uint16_t health_port() const { return health_ ? health_->port() : 0; }  // 0: no such port
  // From any thread.
  void SetReady(bool ready);

 private:
  RpcServer() = default;

  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<HealthServer> health_;  // null without a health-only port
  uint16_t port_ = 0;
};

}  // namespace addend
