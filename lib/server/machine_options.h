// Options and registration that addend-summation and addend-agent share as machines of the cluster:
// the address of the scheduler, the addresses under which others reach this machine, and the
// registration of its summation server.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "lib/options/host_port.h"
#include "lib/server/transport_options.h"
#include "proto/addend/v1/scheduler.pb.h"

namespace addend {

struct MachineOptions {
  TransportOptions transport;
  PeerAddresses scheduler;
  std::string advertise;     // never empty: derived from the route to the scheduler if not given
  std::string data_host;     // of links over TCP; never empty: `advertise` by default
  std::string place;         // in the network, outermost first: "zone/rack"; empty: unknown
  double bandwidth_bps = 0;  // of all NICs together, each direction; 0: unknown
  absl::Duration connect_timeout;
  // The longest time that a thread looks for work before it sleeps. Zero: never, as on a single
  // processor.
  std::chrono::nanoseconds most_spin{0};
};

// Reads the parsed flags (--scheduler, --advertise, --data-interface, --bandwidth,
// --network-place, --connect-timeout, --spin, and those of transport_options.h), which are declared
// in machine_options.cc. INVALID_ARGUMENT names the flag.
absl::StatusOr<MachineOptions> ReadMachineOptions();

// Registration of a summation server on this machine, as a CPU server; an agent adds its job. The
// server accepts TCP at `data_port`, unless RDMA was demanded, and links over RDMA through these
// NICs. `memory_limit_bytes` 0: no limit.
v1::RegisterServerRequest ServerRegistration(const MachineOptions& options,
                                             const rdma::Devices& rdma, uint16_t grpc_port,
                                             uint16_t data_port, uint64_t memory_limit_bytes);

}  // namespace addend
