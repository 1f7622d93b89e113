// The flags of addend-agent, and the checks of their values.
#include "services/worker_agent/options.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "lib/auth/job_proof.h"
#include "lib/base/limits.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/base/units.h"
#include "lib/wire/frame.h"

ABSL_FLAG(std::string, job, "", "name of the job; required");
ABSL_FLAG(std::string, job_secret_file, "",
          "a file with the job's secret: only agents that have the same are let into the job; "
          "default: whoever reaches the scheduler is");
ABSL_FLAG(std::string, node_rank, "0",
          "this node's rank in the job, from 0 (torchrun's GROUP_RANK); trainers: the RANK of the "
          "first trainer says it, and when all have ended the agent waits for others; auto: the "
          "scheduler numbers the job's nodes, neighbours in the network one after the other");
ABSL_FLAG(std::string, node_rank_base, "0",
          "added to --node-rank: a number, or a product such as 3*8 (the fourth group of eight "
          "nodes), for launchers that number nodes within a group");
ABSL_FLAG(uint32_t, num_nodes, 1, "nodes of the job");
ABSL_FLAG(uint32_t, local_size, 1, "ranks on every node (torchrun's --nproc-per-node)");
ABSL_FLAG(std::string, socket, "/run/addend/agent.sock",
          "Unix socket for the trainers of this node");
ABSL_FLAG(std::string, socket_mode, "0600",
          "permissions of that socket: 0600, or 0660 where trainers run as another user of the "
          "agent's group");
ABSL_FLAG(addend::HostPort, listen, (addend::HostPort{"", 7270}),
          "gRPC (control plane), host:port");
ABSL_FLAG(addend::HostPort, data_listen, (addend::HostPort{"", 7271}),
          "data path of the colocated summation server, host:port");
ABSL_FLAG(addend::HostPort, http, (addend::HostPort{"", 7280}),
          "/metrics, /healthz and /readyz, host:port");
ABSL_FLAG(addend::OptionalHostPort, health_listen,
          (addend::OptionalHostPort{addend::HostPort{"", 7281}}),
          "grpc.health.v1 in plain text for probes, host:port; 'off' for none");
ABSL_FLAG(bool, colocated_summation, true,
          "also sum for the job, on this machine's own CPU and link");
ABSL_FLAG(uint32_t, shards, 1, "threads of the colocated summation server");
ABSL_FLAG(addend::ByteSize, memory_limit, {}, "of the colocated summation server; default: none");
ABSL_FLAG(addend::AutoByteSize, partition_bytes, {},
          "job setting: upper limit of a partition; auto: by the bandwidth of the slowest node and "
          "the tensor");
ABSL_FLAG(
    std::string, on_node_loss, "fail",
    "job setting, when a trainer or an agent is lost: fail, or shrink (the other nodes go on)");
ABSL_FLAG(std::string, reduction_order, "node", "job setting: node (ascending node rank)");
ABSL_FLAG(
    uint32_t, audit_one_in, 1000,
    "job setting: one of so many partitions of every round is summed again on another server, "
    "and compared bit by bit; 0: none");
ABSL_FLAG(std::string, topology, "",
          "a recorded topology of this machine (addendctl topology --export); default: what the "
          "kernel says of its PCI bus");
ABSL_FLAG(std::string, intranode, "auto",
          "job setting: how the GPUs of a node aggregate: copy, cpu-assisted, reduce-broadcast or "
          "reduce-scatter; auto: by each machine's topology (addendctl topology says why)");
ABSL_FLAG(bool, deterministic_intranode, true,
          "job setting: GPUs add in the order of the local ranks, as the host does; false: in the "
          "order that NCCL chooses");
ABSL_FLAG(
    bool, gpudirect, false,
    "NICs read contributions from the GPU that shares their PCIe switch (GPUDirect RDMA by "
    "dma-buf; docs/gpu.md), where the server is reached over RDMA; never run on such a machine "
    "yet");
ABSL_FLAG(bool, encrypt_data, false,
          "links to other machines are encrypted, both ways (AES-256-GCM, over TCP), for what it "
          "costs (docs/security.md); give it to all agents of the job");
ABSL_FLAG(std::string, wire_dtype, "same",
          "job setting: the type in which float32 sums and averages travel: same (no loss), bf16, "
          "fp16, or int8 (in blocks of 64 elements); tensors may name their own");
ABSL_FLAG(std::string, wire_rounding, "nearest",
          "job setting: how --wire-dtype rounds: nearest, or stochastic (right on average, and the "
          "same bits in every repetition)");
ABSL_FLAG(absl::Duration, stall_timeout, absl::Seconds(300),
          "job setting: a round that is open longer is an error");
ABSL_FLAG(bool, stay_to_refuse, false,
          "what no new attempt can mend (exit status 64, 65, 66 or 77) does not end the agent: it "
          "counts as ready and tells each trainer the reason until it is stopped; for sidecars, "
          "which are started before the trainers, and again for ever");
ABSL_FLAG(std::string, port_file, "",
          "where to write the ports as JSON when serving (for ports chosen by the kernel)");

namespace addend {
namespace {

constexpr uint32_t kMaxShards = 256;
constexpr char kOwnersMode[] = "0600";
constexpr char kGroupsMode[] = "0660";

absl::Status CheckRange(const char* flag, uint64_t value, uint64_t least, uint64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("--%s=%d must be from %d to %d", flag, value, least, most));
}

// "8" or "3*8".
absl::StatusOr<uint32_t> ParseRankBase(const std::string& text) {
  uint64_t product = 1;
  for (const absl::string_view part : absl::StrSplit(text, '*')) {
    uint32_t factor = 0;
    if (!absl::SimpleAtoi(part, &factor) || factor > kMaxNodes ||
        (product *= factor) > uint64_t{kMaxNodes}) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "--node-rank-base=%s must be a number, or a product such as 3*8, from 0 to %d", text,
          kMaxNodes));
    }
  }
  return static_cast<uint32_t>(product);
}

constexpr char kByTrainers[] = "trainers";
constexpr char kByScheduler[] = "auto";

// nullopt: somebody else says.
absl::StatusOr<std::optional<uint32_t>> ReadNodeRank() {
  const std::string text = absl::GetFlag(FLAGS_node_rank);
  if (text == kByTrainers || text == kByScheduler) {
    if (const std::string base = absl::GetFlag(FLAGS_node_rank_base); base != "0") {
      return absl::InvalidArgumentError(absl::StrFormat(
          "--node-rank-base=%s has nothing to be added to: --node-rank=%s gives the whole number",
          base, text));
    }
    return std::nullopt;
  }
  uint32_t rank = 0;
  if (!absl::SimpleAtoi(text, &rank) || rank > kMaxNodes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--node-rank=%s must be a number from 0 to %d, or trainers, or auto", text, kMaxNodes));
  }
  ADDEND_ASSIGN_OR_RETURN(const uint32_t base, ParseRankBase(absl::GetFlag(FLAGS_node_rank_base)));
  return base + rank;
}

absl::Status OfFlag(const char* flag, const absl::Status& why) {
  return absl::Status(why.code(), absl::StrFormat("--%s: %s", flag, Message(why)));
}

absl::Status CheckChoice(const char* flag, const std::string& value,
                         const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), value) != known.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("--%s=%s is unknown: use %s", flag, value, absl::StrJoin(known, " or ")));
}

absl::Status Check(const AgentOptions& options) {
  if (options.job.empty())
    return absl::InvalidArgumentError("--job is missing: give the job a name");
  ADDEND_RETURN_IF_ERROR(CheckRange("num-nodes", options.num_nodes, 1, kMaxNodes));
  if (options.node_rank.value_or(0) >= options.num_nodes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--node-rank=%s with --node-rank-base=%s is node %d, but must be from 0 to %d "
        "(--num-nodes=%d)",
        absl::GetFlag(FLAGS_node_rank), absl::GetFlag(FLAGS_node_rank_base), *options.node_rank,
        options.num_nodes - 1, options.num_nodes));
  }
  ADDEND_RETURN_IF_ERROR(CheckRange("local-size", options.local_size, 1, kMaxLocalSize));
  ADDEND_RETURN_IF_ERROR(CheckRange("shards", options.shards, 1, kMaxShards));
  if (options.partition_bytes != 0) {
    ADDEND_RETURN_IF_ERROR(CheckRange("partition-bytes", options.partition_bytes,
                                      kMinPartitionBytes, kMaxPayloadBytes));
  }
  ADDEND_RETURN_IF_ERROR(CheckChoice("on-node-loss", options.on_node_loss, {"fail", "shrink"}));
  if (options.reduction_order == "arrival") {
    return absl::InvalidArgumentError(
        "--reduction-order=arrival is not supported by this version: use node");
  }
  ADDEND_RETURN_IF_ERROR(CheckChoice("reduction-order", options.reduction_order, {"node"}));
  if (options.stall_timeout < absl::Seconds(1) ||
      options.stall_timeout == absl::InfiniteDuration()) {
    return absl::InvalidArgumentError("--stall-timeout must be finite and at least 1s");
  }
  return absl::OkStatus();
}

}  // namespace

TrainersDoor ReadTrainersDoor() {
  return {.socket = absl::GetFlag(FLAGS_socket),
          .socket_mode = absl::GetFlag(FLAGS_socket_mode) == kGroupsMode ? 0660U : 0600U,
          .health = absl::GetFlag(FLAGS_health_listen).address,
          .stay_to_refuse = absl::GetFlag(FLAGS_stay_to_refuse)};
}

absl::StatusOr<AgentOptions> ReadAgentOptions() {
  AgentOptions options;
  options.job = absl::GetFlag(FLAGS_job);
  ADDEND_ASSIGN_OR_RETURN(options.node_rank, ReadNodeRank());
  options.numbered_by_scheduler = absl::GetFlag(FLAGS_node_rank) == kByScheduler;
  options.num_nodes = absl::GetFlag(FLAGS_num_nodes);
  options.local_size = absl::GetFlag(FLAGS_local_size);
  ADDEND_RETURN_IF_ERROR(
      CheckChoice("socket-mode", absl::GetFlag(FLAGS_socket_mode), {kOwnersMode, kGroupsMode}));
  options.door = ReadTrainersDoor();
  options.listen.grpc = absl::GetFlag(FLAGS_listen);
  options.listen.data = absl::GetFlag(FLAGS_data_listen);
  options.listen.http = absl::GetFlag(FLAGS_http);
  options.colocated_summation = absl::GetFlag(FLAGS_colocated_summation);
  options.shards = absl::GetFlag(FLAGS_shards);
  options.memory_limit_bytes = absl::GetFlag(FLAGS_memory_limit).bytes;
  options.partition_bytes = absl::GetFlag(FLAGS_partition_bytes).bytes;
  options.on_node_loss = absl::GetFlag(FLAGS_on_node_loss);
  options.reduction_order = absl::GetFlag(FLAGS_reduction_order);
  options.audit_one_in = absl::GetFlag(FLAGS_audit_one_in);
  options.stall_timeout = absl::GetFlag(FLAGS_stall_timeout);
  options.port_file = absl::GetFlag(FLAGS_port_file);
  if (const std::string intranode = absl::GetFlag(FLAGS_intranode); intranode != "auto") {
    const absl::StatusOr<Strategy> strategy = ParseStrategy(intranode);
    if (!strategy.ok()) return OfFlag("intranode", strategy.status());
    options.intranode = *strategy;
  }
  const std::string wire = absl::GetFlag(FLAGS_wire_dtype);
  const std::string rounding = absl::GetFlag(FLAGS_wire_rounding);
  ADDEND_RETURN_IF_ERROR(CheckChoice("wire-dtype", wire, {"same", "bf16", "fp16", "int8"}));
  ADDEND_RETURN_IF_ERROR(CheckChoice("wire-rounding", rounding, {"nearest", "stochastic"}));
  options.wire = *WireFormatOf(wire);
  options.wire.stochastic = options.wire.lossy() && rounding == "stochastic";
  options.deterministic_intranode = absl::GetFlag(FLAGS_deterministic_intranode);
  options.gpudirect = absl::GetFlag(FLAGS_gpudirect);
  ADDEND_RETURN_IF_ERROR(Check(options));
  if (const std::string file = absl::GetFlag(FLAGS_job_secret_file); !file.empty()) {
    ADDEND_ASSIGN_OR_RETURN(const std::string secret, auth::ReadSecretFile(file));
    options.join_proof = auth::JoinProof(secret, auth::OfJob(options.job));
  }
  if (const std::string file = absl::GetFlag(FLAGS_topology); !file.empty()) {
    absl::StatusOr<Topology> topology = ReadTopology(file);
    if (!topology.ok()) return OfFlag("topology", topology.status());
    options.topology = *std::move(topology);
  }
  ADDEND_ASSIGN_OR_RETURN(options.machine, ReadMachineOptions());
  options.encrypt_data = absl::GetFlag(FLAGS_encrypt_data);
  if (options.encrypt_data) {
    if (options.machine.transport.mode == TransportMode::kRdma) {
      return absl::InvalidArgumentError(
          "--encrypt-data and --transport=rdma exclude each other: nobody encrypts what a NIC "
          "writes; use --transport=auto");
    }
    options.machine.transport.mode = TransportMode::kTcp;
  }
  return options;
}

}  // namespace addend
