// Which address of this machine others should use, and how fast its link is.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "lib/options/host_port.h"

namespace addend {

// The local address from which `peer` is reached, as the kernel's routing table has it; sends
// nothing. UNAVAILABLE when the name does not resolve or there is no route.
absl::StatusOr<std::string> LocalAddressTowards(const HostPort& peer);

// Bits per second of the interface that has this address, as the kernel reports it; 0 where it does
// not know (loopback, many virtual interfaces).
double LinkSpeedOf(const std::string& address);

// True for an address or name that means "this machine" wherever it is used: 127.0.0.0/8, ::1,
// localhost.
bool IsLoopback(const std::string& host);

std::string Hostname();

}  // namespace addend
