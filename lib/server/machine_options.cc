#include "lib/server/machine_options.h"

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"
#include "lib/base/units.h"
#include "lib/rpc/local_address.h"

ABSL_FLAG(addend::PeerAddresses, scheduler, (addend::PeerAddresses{{{"127.0.0.1", 7070}}}),
          "the scheduler, host:port; several schedulers with commas");
ABSL_FLAG(std::string, advertise, "",
          "host that the other machines connect to; default: the address from which the scheduler "
          "is reached");
ABSL_FLAG(addend::Bandwidth, bandwidth, {},
          "of all NICs together, each direction; default: the link speed that the kernel reports");
ABSL_FLAG(std::string, transport, "auto", "auto or tcp (rdma is not built in yet)");
ABSL_FLAG(
    absl::Duration, connect_timeout, absl::Seconds(60),
    "how long to wait for the scheduler at the start, and for a connection to a summation server");

namespace addend {
namespace {

absl::Status CheckTransport(const std::string& transport) {
  if (transport == "auto" || transport == "tcp") return absl::OkStatus();
  if (transport == "rdma") {
    return absl::InvalidArgumentError(
        "--transport=rdma: this build has no RDMA data path; use auto or tcp");
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("--transport=%s is no transport: use auto or tcp", transport));
}

}  // namespace

absl::StatusOr<MachineOptions> ReadMachineOptions() {
  ADDEND_RETURN_IF_ERROR(CheckTransport(absl::GetFlag(FLAGS_transport)));
  MachineOptions options{.scheduler = absl::GetFlag(FLAGS_scheduler),
                         .advertise = absl::GetFlag(FLAGS_advertise),
                         .bandwidth_bps = absl::GetFlag(FLAGS_bandwidth).bits_per_second,
                         .connect_timeout = absl::GetFlag(FLAGS_connect_timeout)};
  if (options.advertise.empty()) {
    ADDEND_ASSIGN_OR_RETURN(options.advertise,
                            LocalAddressTowards(options.scheduler.addresses.front()));
  }
  if (options.bandwidth_bps == 0) options.bandwidth_bps = LinkSpeedOf(options.advertise);
  return options;
}

v1::RegisterServerRequest ServerRegistration(const MachineOptions& options, uint16_t grpc_port,
                                             uint16_t data_port, uint64_t memory_limit_bytes) {
  v1::RegisterServerRequest request;
  request.set_control_address((HostPort{options.advertise, grpc_port}).ToString());
  v1::DataEndpoint* endpoint = request.add_endpoints();
  endpoint->set_transport("tcp");
  endpoint->set_host(options.advertise);
  endpoint->set_port(data_port);
  request.set_bandwidth_bps(options.bandwidth_bps);
  request.set_memory_limit_bytes(memory_limit_bytes);
  request.set_hostname(Hostname());
  return request;
}

}  // namespace addend
