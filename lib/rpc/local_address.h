// The address of this machine that other machines should use, and the speed of its link.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "lib/options/host_port.h"

namespace addend {

// The local address for the route to `peer` in the kernel's routing table; sends nothing.
// UNAVAILABLE when the name does not resolve or there is no route.
absl::StatusOr<std::string> LocalAddressTowards(const HostPort& peer);

// An address of a network interface of this machine: IPv4 if it has one, else an IPv6 address that
// other machines can use. INVALID_ARGUMENT names the interfaces that there are.
absl::StatusOr<std::string> AddressOfInterface(const std::string& name);

// Bits per second of the interface with this address, as the kernel reports it; 0 if the kernel
// does not know it (loopback, many virtual interfaces).
double LinkSpeedOf(const std::string& address);

// True for an address or name that means "this machine" wherever it is used: 127.0.0.0/8, ::1,
// localhost.
bool IsLoopback(const std::string& host);

std::string Hostname();

}  // namespace addend
