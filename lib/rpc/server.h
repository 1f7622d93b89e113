// A gRPC server as every service of ours runs it: explicit limits, health, reflection, no silent
// sharing of a port.
#pragma once

#include <grpcpp/server.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/fd.h"
#include "lib/options/host_port.h"
#include "lib/rpc/tls.h"

namespace addend {

// Messages larger than this are refused by servers and clients. A plan of 1,000,000 partitions fits
// several times.
inline constexpr int kMaxMessageBytes = 64 << 20;

// Keeps an address for an RpcServer that is to listen on it later, while this lives: nobody else is
// given its port, and who calls it is refused at once. Port 0 needs none of this.
class ReservedAddress {
 public:
  // InvalidArgument if somebody listens on it or it cannot be listened on: better said now.
  static absl::StatusOr<ReservedAddress> Take(const HostPort& address);

 private:
  std::vector<UniqueFd> sockets_;  // bound, so that another may listen beside them
};

// Only grpc.health.v1, which answers for "" (alive) and "readiness" (SetReady): probes cannot do
// TLS. Serves from Start until it is destroyed, on gRPC's threads.
class HealthServer {
 public:
  // Not ready until SetReady(true). InvalidArgument if the address cannot be listened on.
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
  void End(std::chrono::system_clock::time_point deadline);

  std::unique_ptr<grpc::Server> server_;  // null: has ended
  uint16_t port_ = 0;
};

// Serves from Start until it is destroyed, on gRPC's threads. grpc.health.v1 answers as on a
// HealthServer, on the main port and on the health-only port.
class RpcServer {
 public:
  struct Options {
    HostPort listen;
    std::optional<HostPort> health_listen = std::nullopt;
  };

  // The services stay the caller's and must outlive the server. Not ready until SetReady(true).
  // InvalidArgument if an address cannot be listened on. `tls`: who it is to clients; null: plain
  // text, as the health-only port is always.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(
      const Options& options, const std::vector<grpc::Service*>& services,
      const TlsIdentity* tls = ProcessIdentity());
  // Refuses new calls, lets running ones end for 1 s, then cancels them and waits for their
  // handlers. A handler of a stream therefore has to look at ServerContext::IsCancelled at least
  // that often.
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
  std::unique_ptr<HealthServer> health_;  // null: no health-only port
  uint16_t port_ = 0;
};

}  // namespace addend
