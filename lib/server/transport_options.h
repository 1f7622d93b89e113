// --transport, --shared-memory, --wire-encoding and the options of RDMA: whether this machine's
// links use shared memory or RDMA, and through which NICs.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "lib/encoding/payload_encoder.h"
#include "lib/transport/rdma/factory.h"
#include "lib/transport/shm/factory.h"

namespace addend {

enum class TransportMode {
  kAuto,  // RDMA where both ends have it and reach each other, else TCP
  kTcp,
  kRdma,  // RDMA, or an error
};

struct TransportOptions {
  TransportMode mode = TransportMode::kAuto;
  SharedMemoryOptions shared_memory;
  WireEncoding encoding = WireEncoding::kAuto;
  rdma::DeviceOptions devices;
  RdmaOptions rdma;
};

// Reads the parsed flags (--transport, --shared-memory, --wire-encoding, --rdma-device,
// --rdma-gid-index, --rdma-traffic-class, --rdma-spin), which are declared in
// transport_options.cc. INVALID_ARGUMENT names the flag.
absl::StatusOr<TransportOptions> ReadTransportOptions();

// The RDMA resources of this machine.
struct RdmaHere {
  rdma::Devices devices;
  std::string why_none;  // the reason for an empty `devices`
};
// Opens the NICs and logs the transport of the data path. Fails only if RDMA was demanded: it is
// missing (exit status 64), or this process may not use it (77).
absl::StatusOr<RdmaHere> OpenRdma(const TransportOptions& options);

}  // namespace addend
