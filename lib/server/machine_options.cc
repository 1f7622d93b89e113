#include "lib/server/machine_options.h"

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/base/units.h"
#include "lib/base/usable_cpus.h"
#include "lib/rpc/local_address.h"
#include "lib/server/link_signals.h"

ABSL_FLAG(addend::PeerAddresses, scheduler, (addend::PeerAddresses{{{"127.0.0.1", 7070}}}),
          "address of the scheduler, host:port; several schedulers separated by commas");
ABSL_FLAG(std::string, advertise, "",
          "host that other machines connect to; default: the local address of the route to the "
          "scheduler");
ABSL_FLAG(std::string, data_interface, "",
          "network interface for gradients over TCP, such as net1: its address is told to nodes "
          "instead of --advertise, to which calls still go; default: no separate interface");
ABSL_FLAG(addend::Bandwidth, bandwidth, {},
          "bandwidth of all NICs together, each direction; default: the link speed that the kernel "
          "reports");
ABSL_FLAG(std::string, network_place, "",
          "where this machine is in the network, outermost first, such as zone-a/row-2/rack-7; "
          "default: the scheduler's --network-file, or what the members measure");
ABSL_FLAG(
    absl::Duration, connect_timeout, absl::Seconds(60),
    "time to wait for the scheduler at the start, and for a connection to a summation server");
ABSL_FLAG(
    absl::Duration, spin, absl::ZeroDuration(),
    "longest time that a thread looks for work before it sleeps, such as 100us where "
    "processors are idle; it yields to all other work, and looks for less where that does not "
    "pay. 0: never, as on a single processor");

namespace addend {
namespace {

constexpr size_t kPlaceBytesMost = 256;

}  // namespace

absl::StatusOr<MachineOptions> ReadMachineOptions() {
  ADDEND_ASSIGN_OR_RETURN(const TransportOptions transport, ReadTransportOptions());
  MachineOptions options{.transport = transport,
                         .scheduler = absl::GetFlag(FLAGS_scheduler),
                         .advertise = absl::GetFlag(FLAGS_advertise),
                         .data_host = "",
                         .place = absl::GetFlag(FLAGS_network_place),
                         .bandwidth_bps = absl::GetFlag(FLAGS_bandwidth).bits_per_second,
                         .connect_timeout = absl::GetFlag(FLAGS_connect_timeout),
                         .most_spin = {}};
  if (absl::GetFlag(FLAGS_spin) < absl::ZeroDuration()) {
    return absl::InvalidArgumentError("--spin must not be negative");
  }
  if (options.place.size() > kPlaceBytesMost) {
    return absl::InvalidArgumentError(absl::StrFormat("--network-place has %d bytes, more than %d",
                                                      options.place.size(), kPlaceBytesMost));
  }
  if (UsableCpus() >= 2) options.most_spin = absl::ToChronoNanoseconds(absl::GetFlag(FLAGS_spin));
  if (options.advertise.empty()) {
    ADDEND_ASSIGN_OR_RETURN(options.advertise,
                            LocalAddressTowards(options.scheduler.addresses.front()));
  }
  options.data_host = options.advertise;
  if (const std::string name = absl::GetFlag(FLAGS_data_interface); !name.empty()) {
    const auto address = AddressOfInterface(name);
    if (!address.ok()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("--data-interface: %s", Message(address.status())));
    }
    options.data_host = *address;
  }
  if (options.bandwidth_bps == 0) options.bandwidth_bps = LinkSpeedOf(options.data_host);
  return options;
}

v1::RegisterServerRequest ServerRegistration(const MachineOptions& options,
                                             const rdma::Devices& rdma, uint16_t grpc_port,
                                             uint16_t data_port, uint64_t memory_limit_bytes) {
  v1::RegisterServerRequest request;
  request.set_control_address((HostPort{options.advertise, grpc_port}).ToString());
  if (options.transport.mode != TransportMode::kRdma) {
    v1::DataEndpoint* const endpoint = request.add_endpoints();
    endpoint->set_transport("tcp");
    endpoint->set_host(options.data_host);
    endpoint->set_port(data_port);
  }
  for (size_t nic = 0; nic < rdma.size(); ++nic) {
    v1::DataEndpoint* const endpoint = request.add_endpoints();
    endpoint->set_transport("rdma");
    endpoint->set_host(options.advertise);
    endpoint->set_port(grpc_port);
    endpoint->set_nic(static_cast<uint32_t>(nic));
    *endpoint->mutable_rdma() = ToProto(rdma[nic]->address());
  }
  request.set_bandwidth_bps(options.bandwidth_bps);
  request.set_memory_limit_bytes(memory_limit_bytes);
  request.set_hostname(Hostname());
  request.set_place(options.place);
  return request;
}

}  // namespace addend
