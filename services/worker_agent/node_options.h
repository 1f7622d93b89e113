// The settings of an agent's node: constant after the start.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "lib/base/ids.h"
#include "lib/base/wire_format.h"
#include "lib/encoding/payload_encoder.h"
#include "lib/intranode/strategy.h"
#include "lib/intranode/topology.h"
#include "lib/server/transport_options.h"
#include "lib/transport/rdma/rdma_transport.h"

namespace addend {

struct NodeOptions {
  std::string job;
  std::optional<NodeId> node;  // nullopt: that of the first trainer's rank
  uint32_t num_nodes = 1;
  uint32_t local_size = 1;
  // The ranks of the job.
  uint64_t job_size() const { return uint64_t{num_nodes} * local_size; }
  Incarnation incarnation;
  std::string hostname;
  std::string advertise;  // this machine's address for other machines
  std::string socket;
  uint32_t socket_mode = 0600;
  double bandwidth_bps = 0;  // of this machine, each direction; 0: unknown
  absl::Duration connect_timeout = absl::Seconds(60);
  absl::Duration stall_timeout = absl::Seconds(300);
  uint32_t audit_one_in = 0;  // audits 1 of this many rounds of partitions; 0: audits are off
  TransportMode transport = TransportMode::kAuto;    // of links to other machines
  WireFormat wire = {};                              // of tensors whose declaration names no type
  WireEncoding wire_encoding = WireEncoding::kAuto;  // of contributions
  bool encrypt_data = false;                         // on these links, both ways, over TCP
  rdma::Devices rdma_devices = {};                   // the NICs that these links may use
  std::string why_no_rdma = {};                      // if there are no such NICs
  RdmaOptions rdma = {};
  // The recorded topology of this machine; nullopt: read it when ranks push from GPUs.
  std::optional<Topology> topology = {};
  std::optional<Strategy> intranode = {};  // of GPUs' aggregation; nullopt: by the topology
  bool deterministic_intranode = true;     // GPUs add in the order of the local ranks
  bool gpudirect = false;                  // NICs read contributions from GPUs where they can
};

}  // namespace addend
