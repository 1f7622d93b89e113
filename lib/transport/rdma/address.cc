#include "lib/transport/rdma/address.h"

#include <arpa/inet.h>

#include <algorithm>
#include <string_view>

#include "absl/strings/str_format.h"

namespace addend::rdma {
namespace {

std::string_view Describe(GidKind kind) {
  constexpr std::string_view kTexts[] = {"a link-local address", "an IPv6 address",
                                         "an IPv4 address"};
  return kTexts[static_cast<int>(kind)];
}

}  // namespace

std::string_view Name(Fabric fabric) {
  constexpr std::string_view kNames[] = {"?", "InfiniBand", "RoCEv1", "RoCEv2"};
  return kNames[static_cast<int>(fabric)];
}

GidKind KindOf(const Gid& gid) {
  // ::ffff:0:0/96 and fe80::/10.
  constexpr std::array<uint8_t, 12> kMapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  if (std::equal(kMapped.begin(), kMapped.end(), gid.begin())) return GidKind::kIpv4;
  return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80 ? GidKind::kLinkLocal : GidKind::kIpv6;
}

std::string FormatGid(const Gid& gid) {
  char text[INET6_ADDRSTRLEN];
  if (KindOf(gid) == GidKind::kIpv4)
    return ::inet_ntop(AF_INET, gid.data() + 12, text, sizeof(text));
  return ::inet_ntop(AF_INET6, gid.data(), text, sizeof(text));
}

absl::Status CheckReaches(const PortAddress& here, const PortAddress& there) {
  if (here.fabric != there.fabric) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s is a port of %s, but the server's port %s is a port of %s", here.device,
                        Name(here.fabric), there.device, Name(there.fabric)));
  }
  if (here.fabric == Fabric::kInfiniBand) {
    if (std::equal(here.gid.begin(), here.gid.begin() + 8, there.gid.begin())) {
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s and the server's %s are in different InfiniBand subnets", here.device, there.device));
  }
  if (KindOf(here.gid) != KindOf(there.gid)) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s has %s (%s) and the server's %s %s (%s): see --rdma-gid-index",
                        here.device, Describe(KindOf(here.gid)), FormatGid(here.gid), there.device,
                        Describe(KindOf(there.gid)), FormatGid(there.gid)));
  }
  return absl::OkStatus();
}

bool IsLoopback(const PortAddress& here, const PortAddress& there) {
  return here.fabric == there.fabric && here.gid == there.gid;
}

}  // namespace addend::rdma
