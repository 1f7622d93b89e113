// How one RDMA port is reached by another: plain facts, without verbs, so that members without any
// RDMA can compare them, and gRPC carry them. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace addend::rdma {

enum class Fabric : uint8_t { kInfiniBand = 1, kRoceV1 = 2, kRoceV2 = 3 };
std::string_view Name(Fabric fabric);

using Gid = std::array<uint8_t, 16>;

struct PortAddress {
  std::string device;  // "mlx5_0:1", for people
  Fabric fabric = Fabric::kRoceV2;
  Gid gid{};
  uint16_t lid = 0;        // InfiniBand only
  uint32_t mtu_bytes = 0;  // that is active

  bool operator==(const PortAddress&) const = default;
};

// What kind of address a GID is, the preferred ones last.
enum class GidKind : uint8_t { kLinkLocal, kIpv6, kIpv4 };
GidKind KindOf(const Gid& gid);
// "10.77.0.1" for the GID of an IPv4 address, else as an IPv6 address.
std::string FormatGid(const Gid& gid);
// OK if queue pairs of the two ports can be connected, as far as that can be told without trying;
// else why not: another kind of fabric, of address, or another InfiniBand subnet.
absl::Status CheckReaches(const PortAddress& here, const PortAddress& there);
// Traffic between the two never leaves the NIC: it would be the slowest loopback there is.
bool IsLoopback(const PortAddress& here, const PortAddress& there);

// One end of a queue pair.
struct LaneAddress {
  PortAddress port;
  uint32_t queue_pair = 0;
  uint32_t first_psn = 0;  // packet sequence number
};

}  // namespace addend::rdma
