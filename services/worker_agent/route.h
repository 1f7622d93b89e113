// Chooses TCP or RDMA for the links to a summation server. Pure.
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
  std::string reason;  // of the choice, for people
};

// This node's side of the choice.
struct RouteChoice {
  TransportMode mode = TransportMode::kAuto;
  std::vector<rdma::PortAddress> ports;  // of this machine, usable for RDMA
  std::string why_no_ports;
};

// `rdma_failure`: the reason of an earlier failure of RDMA to this server; empty: no failure.
// FAILED_PRECONDITION (exit status 64): no transport that both ends allow.
absl::StatusOr<Route> ChooseRoute(const RouteChoice& choice, const v1::ServerInfo& server,
                                  const std::string& rdma_failure);

}  // namespace addend
