#include "lib/transport/rdma/address.h"

#include <arpa/inet.h>

#include <algorithm>
#include <string_view>

#include "absl/strings/str_format.h"

namespace addend::rdma {
namespace {

// ::ffff:0:0/96.
bool IsIpv4(const Gid& gid) {
  return std::all_of(gid.begin(), gid.begin() + 10, [](uint8_t byte) { return byte == 0; }) &&
         gid[10] == 0xff && gid[11] == 0xff;
}

bool IsLinkLocal(const Gid& gid) { return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80; }

std::string_view Kind(const Gid& gid) {
  if (IsIpv4(gid)) return "an IPv4 address";
  return IsLinkLocal(gid) ? "a link-local address" : "an IPv6 address";
}

}  // namespace

std::string_view Name(Fabric fabric) {
  constexpr std::string_view kNames[] = {"?", "InfiniBand", "RoCEv1", "RoCEv2"};
  return kNames[static_cast<int>(fabric)];
}

std::string FormatGid(const Gid& gid) {
  char text[INET6_ADDRSTRLEN];
  if (IsIpv4(gid)) return ::inet_ntop(AF_INET, gid.data() + 12, text, sizeof(text));
  return ::inet_ntop(AF_INET6, gid.data(), text, sizeof(text));
}

absl::Status CheckReaches(const PortAddress& here, const PortAddress& there) {
  if (here.fabric != there.fabric) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s is a port of %s and the server's %s one of %s", here.device,
                        Name(here.fabric), there.device, Name(there.fabric)));
  }
  if (here.fabric == Fabric::kInfiniBand) {
    if (std::equal(here.gid.begin(), here.gid.begin() + 8, there.gid.begin())) {
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s and the server's %s are in different InfiniBand subnets", here.device, there.device));
  }
  if (Kind(here.gid) != Kind(there.gid)) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s has %s (%s) and the server's %s %s (%s): see --rdma-gid-index", here.device,
        Kind(here.gid), FormatGid(here.gid), there.device, Kind(there.gid), FormatGid(there.gid)));
  }
  return absl::OkStatus();
}

bool IsLoopback(const PortAddress& here, const PortAddress& there) {
  return here.fabric == there.fabric && here.gid == there.gid;
}

}  // namespace addend::rdma
