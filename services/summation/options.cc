#include "services/summation/options.h"

#include <algorithm>

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "lib/auth/job_proof.h"
#include "lib/base/status_macros.h"
#include "lib/base/units.h"
#include "lib/base/usable_cpus.h"
#include "lib/memory/container_limit.h"

ABSL_FLAG(addend::HostPort, listen, (addend::HostPort{"", 7170}),
          "address of gRPC (control plane), host:port");
ABSL_FLAG(addend::HostPort, data_listen, (addend::HostPort{"", 7171}),
          "address of the data path, host:port; a single port for all shards");
ABSL_FLAG(addend::HostPort, http, (addend::HostPort{"", 7180}),
          "address of /metrics, /healthz and /readyz, host:port");
ABSL_FLAG(addend::OptionalHostPort, health_listen,
          (addend::OptionalHostPort{addend::HostPort{"", 7181}}),
          "address of grpc.health.v1 in plain text, for probes, host:port; 'off' disables it");
ABSL_FLAG(uint32_t, shards, 0,
          "number of summing threads, each with its own partitions; default: as many as it has "
          "processors, at most 4");
ABSL_FLAG(addend::ByteSize, memory_limit, {},
          "memory for accumulators and early contributions of all jobs; default: three quarters of "
          "the machine's or container's memory");
ABSL_FLAG(addend::ByteSize, job_memory_limit, {},
          "memory for each job within --memory-limit, so that no job can use up the server; 0: no "
          "limit but --memory-limit");
ABSL_FLAG(absl::Duration, drain_timeout, absl::Seconds(25),
          "time after SIGTERM for other servers to take over this server's partitions; less than "
          "the grace period of Kubernetes (30s)");
ABSL_FLAG(std::string, server_secret_file, "",
          "file with the servers' secret, if the scheduler requires it of CPU servers");
ABSL_FLAG(std::string, port_file, "",
          "file to which the server writes its ports as JSON when it serves (for ports chosen by "
          "the kernel)");

namespace addend {
namespace {

constexpr uint32_t kMaxShards = 256;

}  // namespace

absl::StatusOr<SummationOptions> ReadSummationOptions() {
  SummationOptions options;
  options.listen = absl::GetFlag(FLAGS_listen);
  options.data_listen = absl::GetFlag(FLAGS_data_listen);
  options.http = absl::GetFlag(FLAGS_http);
  options.health_listen = absl::GetFlag(FLAGS_health_listen).address;
  options.drain_timeout = absl::GetFlag(FLAGS_drain_timeout);
  if (options.drain_timeout < absl::ZeroDuration()) {
    return absl::InvalidArgumentError("--drain-timeout must not be negative");
  }
  options.port_file = absl::GetFlag(FLAGS_port_file);

  if (const std::string file = absl::GetFlag(FLAGS_server_secret_file); !file.empty()) {
    ADDEND_ASSIGN_OR_RETURN(const std::string secret, auth::ReadSecretFile(file));
    options.join_proof = auth::JoinProof(secret, auth::kOfServers);
  }
  options.shards = absl::GetFlag(FLAGS_shards);
  if (options.shards > kMaxShards) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--shards=%d is more than %d", options.shards, kMaxShards));
  }
  if (options.shards == 0)
    options.shards = static_cast<uint32_t>(std::clamp(UsableCpus(), 1.0, 4.0));
  options.memory_limit_bytes = absl::GetFlag(FLAGS_memory_limit).bytes;
  if (options.memory_limit_bytes == 0)
    options.memory_limit_bytes = ReadMemory().usable_bytes() / 4 * 3;
  options.job_memory_limit_bytes = absl::GetFlag(FLAGS_job_memory_limit).bytes;
  ADDEND_ASSIGN_OR_RETURN(options.machine, ReadMachineOptions());
  return options;
}

}  // namespace addend
