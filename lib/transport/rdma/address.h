// The address of an RDMA port: plain data without verbs, so that members without RDMA can compare
// addresses, and gRPC can carry them. Pure.
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
  std::string device;  // "mlx5_0:1", for messages
  Fabric fabric = Fabric::kRoceV2;
  Gid gid{};
  uint16_t lid = 0;        // InfiniBand only
  uint32_t mtu_bytes = 0;  // the active MTU

  bool operator==(const PortAddress&) const = default;
};

// The kind of a GID's address, preferred kinds last.
enum class GidKind : uint8_t { kLinkLocal, kIpv6, kIpv4 };
GidKind KindOf(const Gid& gid);
// "10.77.0.1" for the GID of an IPv4 address, otherwise an IPv6 address.
std::string FormatGid(const Gid& gid);
// OK if queue pairs of the two ports can be connected, as far as the addresses show; otherwise the
// reason: different fabrics, different kinds of address, or different InfiniBand subnets.
absl::Status CheckReaches(const PortAddress& here, const PortAddress& there);
// True if traffic between the two never leaves the NIC: it would be the slowest kind of loopback.
bool IsLoopback(const PortAddress& here, const PortAddress& there);

// An end of a queue pair.
struct LaneAddress {
  PortAddress port;
  uint32_t queue_pair = 0;
  uint32_t first_psn = 0;  // packet sequence number
};

}  // namespace addend::rdma
