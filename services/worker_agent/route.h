// Which way a link to a summation server takes. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/server/transport_options.h"
#include "lib/transport/rdma/address.h"
#include "lib/transport/transport.h"
#include "proto/addend/v1/scheduler.pb.h"

namespace addend {

// The server takes links over TCP.
bool TakesTcp(const v1::ServerInfo& server);

struct Route {
  bool rdma = false;
  Address address;     // of the data port; with RDMA of gRPC
  std::string reason;  // why it is this way, for people
};

// What the choice depends on, besides the server.
struct RouteChoice {
  TransportMode mode = TransportMode::kAuto;
  std::vector<rdma::PortAddress> ports;  // of this machine that RDMA may use
  std::string why_no_ports;
};

// `rdma_failure`: why RDMA to this server has failed before; empty: it has not.
// FAILED_PRECONDITION (exit status 64): there is no way that both ends allow.
absl::StatusOr<Route> ChooseRoute(const RouteChoice& choice, const v1::ServerInfo& server,
                                  const std::string& rdma_failure);

}  // namespace addend
