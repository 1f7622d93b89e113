// Runs a gRPC server: binds its address first to find out whether the address is free, starts the
// server, and ends its calls within a bounded time.

#include "lib/rpc/server.h"

#include <grpc/support/time.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/fd.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/rpc/grpc_process.h"

namespace addend {
namespace {

constexpr char kReadiness[] = "readiness";
constexpr std::chrono::seconds kShutdownTime(1);

// A socket bound to each address that `address` resolves to. Unavailable with the reason if an
// address is in use, or if no address can be bound.
absl::StatusOr<std::vector<UniqueFd>> Bind(const HostPort& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(address.port);
  if (const int error = ::getaddrinfo(address.host.empty() ? nullptr : address.host.c_str(),
                                      port.c_str(), &hints, &found);
      error != 0) {
    return absl::UnavailableError(::gai_strerror(error));
  }
  std::vector<UniqueFd> sockets;
  int reason = 0;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    UniqueFd fd(::socket(entry->ai_family, entry->ai_socktype | SOCK_CLOEXEC, 0));
    const int yes = 1;
    ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    if (fd.valid() && ::bind(fd.get(), entry->ai_addr, entry->ai_addrlen) == 0) {
      sockets.push_back(std::move(fd));
    } else if (reason != EADDRINUSE) {
      reason = errno;
    }
  }
  ::freeaddrinfo(found);
  if (reason == EADDRINUSE) return absl::UnavailableError("the address is in use");
  if (sockets.empty()) return absl::UnavailableError(std::strerror(reason));
  return sockets;
}

absl::Status CannotListen(const HostPort& address, std::string_view purpose,
                          std::string_view reason) {
  return absl::InvalidArgumentError(
      absl::StrFormat("cannot listen on %s for %s: %s", address.ToString(), purpose, reason));
}

// gRPC does not report why it cannot listen: binding the address again finds the reason.
std::string WhyNotListening(const HostPort& address) {
  const auto bound = Bind(address);
  return bound.ok() ? "gRPC refused the address" : Message(bound.status());
}

struct Listening {
  std::unique_ptr<grpc::Server> server;
  uint16_t port = 0;
};

absl::StatusOr<Listening> Listen(const HostPort& address,
                                 const std::vector<grpc::Service*>& services,
                                 std::string_view purpose, const RpcServer::Options& options,
                                 std::shared_ptr<grpc::ServerCredentials> credentials) {
  grpc::ServerBuilder builder;
  int port = 0;
  const HostPort bind_address{address.host.empty() ? "::" : address.host, address.port};
  builder.AddListeningPort(bind_address.ToString(), std::move(credentials), &port);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.SetMaxReceiveMessageSize(options.max_request_bytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreams);
  builder.SetMaxSendMessageSize(options.max_answer_bytes);
  // Clients ping every 5 s (lib/rpc/client.cc). By default gRPC regards that as abuse and closes
  // the connection.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // Cancels a stream whose client has vanished without closing it, within 20 s.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 10000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Requests are small, or rare: no probes for larger windows.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  // A peer that connects and sends nothing is kept for 10 s, not for gRPC's two minutes.
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10000);
  for (grpc::Service* service : services) builder.RegisterService(service);
  Listening result{builder.BuildAndStart(), 0};
  if (result.server == nullptr || port <= 0) {
    return CannotListen(address, purpose, WhyNotListening(address));
  }
  result.port = static_cast<uint16_t>(port);
  return result;
}

void SetHealth(grpc::Server* server, bool ready) {
  auto* const health = server->GetHealthCheckService();
  if (health == nullptr) return;
  health->SetServingStatus("", true);
  health->SetServingStatus(kReadiness, ready);
}

std::chrono::steady_clock::time_point EndOfCalls() {
  return std::chrono::steady_clock::now() + kShutdownTime;
}

// Converts a steady deadline: gRPC accepts std::chrono deadlines only by wall-clock time.
gpr_timespec ForGrpc(std::chrono::steady_clock::time_point deadline) {
  return gpr_time_from_nanos(std::chrono::nanoseconds(deadline.time_since_epoch()).count(),
                             GPR_CLOCK_MONOTONIC);
}

void ShutDown(grpc::Server* server, std::chrono::steady_clock::time_point deadline) {
  server->Shutdown(ForGrpc(deadline));
  server->Wait();
}

// Both are process-wide settings that gRPC reads when it builds a server.
void EnableHealthAndReflection() {
  static const bool enabled = [] {
    internal::BeginGrpc();
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    return true;
  }();
  (void)enabled;
}

}  // namespace

absl::StatusOr<ReservedAddress> ReservedAddress::Take(const HostPort& address) {
  ReservedAddress reserved;
  if (address.port == 0) return reserved;
  auto sockets = Bind(address);
  if (!sockets.ok()) return CannotListen(address, "gRPC", Message(sockets.status()));
  reserved.sockets_ = *std::move(sockets);
  return reserved;
}

absl::StatusOr<std::unique_ptr<HealthServer>> HealthServer::Start(const HostPort& listen) {
  EnableHealthAndReflection();
  std::unique_ptr<HealthServer> result(new HealthServer());
  ADDEND_ASSIGN_OR_RETURN(
      Listening health, Listen(listen, {}, "health checks", {}, grpc::InsecureServerCredentials()));
  result->server_ = std::move(health.server);
  result->port_ = health.port;
  result->SetReady(false);
  return result;
}

HealthServer::~HealthServer() {
  if (server_ != nullptr) ShutDown(server_.get(), EndOfCalls());
}

void HealthServer::End(std::chrono::steady_clock::time_point deadline) {
  ShutDown(server_.get(), deadline);
  server_.reset();
}

void HealthServer::SetReady(bool ready) { SetHealth(server_.get(), ready); }

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(
    const Options& options, const std::vector<grpc::Service*>& services, const TlsIdentity* tls) {
  EnableHealthAndReflection();
  std::unique_ptr<RpcServer> result(new RpcServer());
  ADDEND_ASSIGN_OR_RETURN(
      Listening main, Listen(options.listen, services, "gRPC", options,
                             tls ? tls->server_credentials() : grpc::InsecureServerCredentials()));
  result->server_ = std::move(main.server);
  result->port_ = main.port;
  if (options.health_listen.has_value()) {
    ADDEND_ASSIGN_OR_RETURN(result->health_, HealthServer::Start(*options.health_listen));
  }
  result->SetReady(false);
  return result;
}

RpcServer::~RpcServer() {
  if (server_ == nullptr) return;
  SetReady(false);
  const auto deadline = EndOfCalls();  // a common deadline: both servers may have streams that hang
  ShutDown(server_.get(), deadline);
  if (health_ != nullptr) health_->End(deadline);
}

void RpcServer::SetReady(bool ready) {
  SetHealth(server_.get(), ready);
  if (health_ != nullptr) health_->SetReady(ready);
}

}  // namespace addend
