// The system calls of a TCP socket, with errors for people.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "lib/base/fd.h"
#include "lib/transport/transport.h"

namespace addend::tcp {

absl::StatusOr<UniqueFd> ListenOn(const Address& bind, uint16_t* port);
// Starts a non-blocking connect; writable when it is decided.
absl::StatusOr<UniqueFd> StartConnect(const Address& peer);
// After the socket became writable: OK, or UNAVAILABLE with the reason.
absl::Status ConnectResult(int fd, const Address& peer);
// No Nagle, keep-alive, bounded unsent bytes.
void Tune(int fd, int unsent_bytes_max);
// Of what is written to it, at most so much waits in the kernel to be sent or acknowledged, and
// never more than kUnacknowledgedMost, where many kernels draw the line (net.core.wmem_max); from
// then on the kernel does not choose by itself any more, which would know no such line.
inline constexpr size_t kUnacknowledgedMost = 416 << 10;
void LimitUnacknowledged(int fd, size_t bytes);
std::string PeerName(int fd);
// How long the kernel had bytes to send that were not acknowledged yet.
absl::Duration BusyTime(int fd);

}  // namespace addend::tcp
