#include "services/worker_agent/options.h"

#include <algorithm>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "lib/base/status_macros.h"
#include "lib/base/units.h"
#include "lib/wire/frame.h"

ABSL_FLAG(std::string, job, "", "name of the job; required");
ABSL_FLAG(uint32_t, node_rank, 0, "this node's rank in the job, from 0 (torchrun's GROUP_RANK)");
ABSL_FLAG(uint32_t, num_nodes, 1, "nodes of the job");
ABSL_FLAG(uint32_t, local_size, 1, "ranks on every node (torchrun's --nproc-per-node)");
ABSL_FLAG(std::string, socket, "/run/addend/agent.sock",
          "Unix socket for the trainers of this node");
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
ABSL_FLAG(absl::Duration, stall_timeout, absl::Seconds(300),
          "job setting: a round that is open longer is an error");
ABSL_FLAG(std::string, log_level, "info", "trace, debug, info, warn, error or off");
ABSL_FLAG(std::string, port_file, "",
          "where to write the ports as JSON when serving (for ports chosen by the kernel)");

namespace addend {
namespace {

constexpr uint32_t kMaxNodes = 65536;
constexpr uint32_t kMaxLocalSize = 1024;
constexpr uint32_t kMaxShards = 256;
constexpr uint64_t kMinPartitionBytes = 512;

absl::Status CheckRange(const char* flag, uint64_t value, uint64_t least, uint64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("--%s=%d must be from %d to %d", flag, value, least, most));
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
  ADDEND_RETURN_IF_ERROR(CheckRange("node-rank", options.node_rank, 0, options.num_nodes - 1));
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

absl::StatusOr<AgentOptions> ReadAgentOptions() {
  AgentOptions options;
  options.job = absl::GetFlag(FLAGS_job);
  options.node_rank = absl::GetFlag(FLAGS_node_rank);
  options.num_nodes = absl::GetFlag(FLAGS_num_nodes);
  options.local_size = absl::GetFlag(FLAGS_local_size);
  options.socket = absl::GetFlag(FLAGS_socket);
  options.listen = absl::GetFlag(FLAGS_listen);
  options.data_listen = absl::GetFlag(FLAGS_data_listen);
  options.http = absl::GetFlag(FLAGS_http);
  options.health_listen = absl::GetFlag(FLAGS_health_listen).address;
  options.colocated_summation = absl::GetFlag(FLAGS_colocated_summation);
  options.shards = absl::GetFlag(FLAGS_shards);
  options.memory_limit_bytes = absl::GetFlag(FLAGS_memory_limit).bytes;
  options.partition_bytes = absl::GetFlag(FLAGS_partition_bytes).bytes;
  options.on_node_loss = absl::GetFlag(FLAGS_on_node_loss);
  options.reduction_order = absl::GetFlag(FLAGS_reduction_order);
  options.stall_timeout = absl::GetFlag(FLAGS_stall_timeout);
  options.log_level = absl::GetFlag(FLAGS_log_level);
  options.port_file = absl::GetFlag(FLAGS_port_file);
  ADDEND_RETURN_IF_ERROR(Check(options));
  ADDEND_ASSIGN_OR_RETURN(options.machine, ReadMachineOptions());
  return options;
}

}  // namespace addend
