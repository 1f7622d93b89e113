// The options of addend-agent: one declared table (options.cc), checked as a whole here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "lib/intranode/strategy.h"
#include "lib/intranode/topology.h"
#include "lib/options/host_port.h"
#include "lib/server/machine_options.h"

namespace addend {

// Where trainers and probes look for the agent.
struct TrainersDoor {
  std::string socket;
  uint32_t socket_mode = 0600;  // permissions of the socket
  std::optional<HostPort> health;
  bool stay_to_refuse = false;
};

struct AgentOptions {
  MachineOptions machine;
  std::string job;
  std::string join_proof;  // that the node knows the job's secret; empty: without a secret
  std::optional<uint32_t> node_rank;   // --node-rank-base included; nullopt: somebody else says
  bool numbered_by_scheduler = false;  // nullopt: the scheduler says; else the trainers' ranks
  uint32_t num_nodes = 1;
  uint32_t local_size = 1;
  TrainersDoor door;
  struct {
    HostPort grpc;
    HostPort data;
    HostPort http;
  } listen;
  bool colocated_summation = true;
  uint32_t shards = 1;  // of the colocated server
  uint64_t memory_limit_bytes = 0;
  uint64_t partition_bytes = 0;  // 0: auto
  std::string on_node_loss;
  std::string reduction_order;
  uint32_t audit_one_in = 0;
  absl::Duration stall_timeout;
  std::optional<Topology> topology;   // recorded of this machine; nullopt: read it when GPUs come
  std::optional<Strategy> intranode;  // of GPUs' aggregation; nullopt: by the topology
  bool deterministic_intranode = true;
  bool gpudirect = false;
  WireFormat wire;
  bool encrypt_data = false;  // TCP is the transport then
  std::string port_file;
};

// Of the parsed flags, even if others are wrong.
TrainersDoor ReadTrainersDoor();

// Reads the parsed flags. INVALID_ARGUMENT names the flag.
absl::StatusOr<AgentOptions> ReadAgentOptions();

}  // namespace addend
