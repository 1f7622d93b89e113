// Looks for RDMA ports that reach each other, and falls back to TCP.
#include "services/worker_agent/route.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/failure.h"
#include "lib/base/strings.h"
#include "lib/member/protocols.h"
#include "lib/server/link_signals.h"

namespace addend {
namespace {

const v1::DataEndpoint* FindEndpoint(const v1::ServerInfo& server, const std::string& transport) {
  for (const v1::DataEndpoint& endpoint : server.endpoints()) {
    if (endpoint.transport() == transport) return &endpoint;
  }
  return nullptr;
}

Address AddressOf(const v1::DataEndpoint& endpoint) {
  return {endpoint.host(), static_cast<uint16_t>(endpoint.port())};
}

// OK: a port of this machine reaches a port of the server's, and `*through` names both. Else the
// reason of the last failure.
absl::Status FindPath(const RouteChoice& choice, const v1::ServerInfo& server,
                      std::string* through) {
  absl::Status why = absl::FailedPreconditionError("the server has none (any more)");
  if (choice.ports.empty()) return absl::FailedPreconditionError(choice.why_no_ports);
  if (const VersionRange theirs = RdmaOf(server.protocols());
      !Common(protocol::kRdma, theirs).has_value()) {
    return absl::FailedPreconditionError(
        absl::StrFormat("the server speaks %s of the RDMA protocol, but this agent speaks %s",
                        Describe(theirs), Describe(protocol::kRdma)));
  }
  for (const v1::DataEndpoint& endpoint : server.endpoints()) {
    if (endpoint.transport() != "rdma") continue;
    const auto there = FromProto(endpoint.rdma());
    if (!there.ok()) return there.status();
    for (const rdma::PortAddress& here : choice.ports) {
      why = rdma::CheckReaches(here, *there);
      if (!why.ok()) continue;
      *through = absl::StrFormat("%s to its %s", here.device, there->device);
      if (choice.mode == TransportMode::kRdma || !rdma::IsLoopback(here, *there)) return why;
      why = absl::FailedPreconditionError("the server is behind the same NIC");
    }
  }
  return why;
}

}  // namespace

bool TakesTcp(const v1::ServerInfo& server) { return FindEndpoint(server, "tcp") != nullptr; }

absl::StatusOr<Route> ChooseRoute(const RouteChoice& choice, const v1::ServerInfo& server,
                                  const std::string& rdma_failure) {
  const v1::DataEndpoint* const tcp = FindEndpoint(server, "tcp");
  std::string through;
  absl::Status rdma = choice.mode == TransportMode::kTcp
                          ? absl::FailedPreconditionError("--transport=tcp")
                          : FindPath(choice, server, &through);
  if (rdma.ok() && !rdma_failure.empty() && choice.mode == TransportMode::kAuto && tcp != nullptr) {
    rdma = absl::UnavailableError(rdma_failure);
  }
  if (rdma.ok()) {
    Route route{true, AddressOf(*FindEndpoint(server, "rdma")), through};
    route.address.rdma_version = Common(protocol::kRdma, RdmaOf(server.protocols()))->newest;
    return route;
  }
  if (tcp != nullptr && choice.mode != TransportMode::kRdma) {
    return Route{false, AddressOf(*tcp), "no RDMA: " + Message(rdma)};
  }
  return WithKind(absl::FailedPreconditionError(absl::StrFormat(
                      "%s has --transport=rdma, but from this node there is no way to the "
                      "summation server on %s: %s",
                      tcp == nullptr ? "it" : "this agent", server.hostname(), Message(rdma))),
                  FailureKind::kInvalid);
}

}  // namespace addend
