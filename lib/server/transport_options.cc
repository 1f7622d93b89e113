#include "lib/server/transport_options.h"

#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "lib/base/failure.h"
#include "lib/base/log.h"
#include "lib/base/strings.h"

ABSL_FLAG(std::string, transport, "auto",
          "transport of links to other machines: auto (RDMA where both ends have it and reach each "
          "other, else TCP), tcp, or rdma (else an error)");
ABSL_FLAG(std::string, rdma_device, "",
          "the RDMA NICs to use, separated by commas: mlx5_0, or mlx5_0:1 for its first port; "
          "default: all NICs with an active port");
ABSL_FLAG(int, rdma_gid_index, -1,
          "index in the NIC's GID table; default: a RoCEv2 entry, preferably of an IPv4 address");
ABSL_FLAG(uint32_t, rdma_traffic_class, 0,
          "traffic class in the IP header of RoCE packets: DSCP * 4, which the switches map to a "
          "priority");
ABSL_FLAG(absl::Duration, rdma_spin, absl::Microseconds(50),
          "time for which a thread polls for further RDMA completions before it sleeps");

ABSL_FLAG(std::string, shared_memory, "auto",
          "links to processes of the same machine: auto (through shared memory, if they are in the "
          "same network namespace), off (as links to other machines), or a folder that the "
          "processes share, in which they meet instead");

ABSL_FLAG(
    std::string, wire_encoding, "auto",
    "form in which gradients leave this machine: auto (exact encodings with the same bits in "
    "fewer bytes, where they are worth their processor time), always (even where not), or raw");

namespace addend {
namespace {

absl::StatusOr<TransportMode> ParseMode(const std::string& mode) {
  if (mode == "auto") return TransportMode::kAuto;
  if (mode == "tcp") return TransportMode::kTcp;
  if (mode == "rdma") return TransportMode::kRdma;
  return absl::InvalidArgumentError(
      absl::StrFormat("--transport=%s is not a transport: use auto, tcp or rdma", mode));
}

absl::StatusOr<SharedMemoryOptions> ParseSharedMemory(const std::string& value) {
  if (value == "auto") return SharedMemoryOptions{.enabled = true, .folder = ""};
  if (value == "off") return SharedMemoryOptions{.enabled = false, .folder = ""};
  if (value.starts_with('/')) return SharedMemoryOptions{.enabled = true, .folder = value};
  return absl::InvalidArgumentError(absl::StrFormat(
      "--shared-memory=%s is neither auto nor off nor a folder that begins with /", value));
}

std::string Describe(const rdma::PortAddress& port) {
  return absl::StrFormat("%s (%s, %s, MTU %d)", port.device, rdma::Name(port.fabric),
                         rdma::FormatGid(port.gid), port.mtu_bytes);
}

}  // namespace

absl::StatusOr<TransportOptions> ReadTransportOptions() {
  TransportOptions options;
  const auto mode = ParseMode(absl::GetFlag(FLAGS_transport));
  if (!mode.ok()) return mode.status();
  options.mode = *mode;
  const auto encoding = WireEncodingOf(absl::GetFlag(FLAGS_wire_encoding));
  if (!encoding) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--wire-encoding=%s is unknown: use auto, always or raw",
                        absl::GetFlag(FLAGS_wire_encoding)));
  }
  options.encoding = *encoding;
  const auto shared_memory = ParseSharedMemory(absl::GetFlag(FLAGS_shared_memory));
  if (!shared_memory.ok()) return shared_memory.status();
  options.shared_memory = *shared_memory;
  options.devices.names = absl::StrSplit(absl::GetFlag(FLAGS_rdma_device), ',', absl::SkipEmpty());
  options.devices.gid_index = absl::GetFlag(FLAGS_rdma_gid_index);
  if (options.devices.gid_index < -1 || options.devices.gid_index > 255) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--rdma-gid-index=%d must be from 0 to 255, or -1 for the default",
                        options.devices.gid_index));
  }
  const uint32_t traffic_class = absl::GetFlag(FLAGS_rdma_traffic_class);
  if (traffic_class > 255) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--rdma-traffic-class=%d must be from 0 to 255", traffic_class));
  }
  options.devices.traffic_class = static_cast<uint8_t>(traffic_class);
  options.rdma.spin = absl::GetFlag(FLAGS_rdma_spin);
  if (options.rdma.spin < absl::ZeroDuration() || options.rdma.spin > absl::Seconds(1)) {
    return absl::InvalidArgumentError(absl::StrFormat("--rdma-spin=%s must be from 0 to 1s",
                                                      absl::FormatDuration(options.rdma.spin)));
  }
  return options;
}

absl::StatusOr<RdmaHere> OpenRdma(const TransportOptions& options) {
  if (options.mode == TransportMode::kTcp) return RdmaHere{{}, "--transport=tcp"};
  auto devices = rdma::OpenDevices(options.devices);
  if (devices.ok()) {
    std::vector<std::string> ports;
    for (const auto& device : *devices) ports.push_back(Describe(device->address()));
    spdlog::info("the data path is RDMA on {}{}", absl::StrJoin(ports, ", "),
                 options.mode == TransportMode::kRdma ? "" : ", or TCP");
    return RdmaHere{*std::move(devices), ""};
  }
  const std::string why = Message(devices.status());
  if (options.mode == TransportMode::kRdma) {
    const bool denied = absl::IsPermissionDenied(devices.status());
    return WithKind(absl::FailedPreconditionError(absl::StrFormat("--transport=rdma, but %s", why)),
                    denied ? FailureKind::kPermission : FailureKind::kInvalid);
  }
  spdlog::info("the data path is TCP, without RDMA: {}", why);
  return RdmaHere{{}, why};
}

}  // namespace addend
