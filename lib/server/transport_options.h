// --transport and what belongs to it: whether this machine's links go over RDMA, and through which
// of its NICs.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "lib/transport/rdma/factory.h"

namespace addend {

enum class TransportMode {
  kAuto,  // RDMA where both ends have it and reach each other, else TCP
  kTcp,
  kRdma,  // or an error
};

struct TransportOptions {
  TransportMode mode = TransportMode::kAuto;
  rdma::DeviceOptions devices;
  RdmaOptions rdma;
};

// Reads the parsed flags (--transport, --rdma-device, --rdma-gid-index, --rdma-traffic-class,
// --rdma-spin), which are declared in transport_options.cc. INVALID_ARGUMENT names the flag.
absl::StatusOr<TransportOptions> ReadTransportOptions();

// What this machine has of RDMA.
struct RdmaHere {
  rdma::Devices devices;
  std::string why_none;  // if there are none
};
// Says in one line of the log what the data path is. An error only if RDMA was demanded: there is
// none (exit status 64), or this process may not use it (77).
absl::StatusOr<RdmaHere> OpenRdma(const TransportOptions& options);

}  // namespace addend
