// The system calls of a TCP socket, with readable errors.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "lib/base/fd.h"
#include "lib/transport/tcp/name_lookup.h"
#include "lib/transport/transport.h"

namespace addend::tcp {

absl::StatusOr<UniqueFd> ListenOn(const Address& bind, uint16_t* port);
// Starts a non-blocking connect to an address of the peer. The socket becomes writable when the
// outcome is known.
absl::StatusOr<UniqueFd> StartConnect(const SocketAddress& address, const Address& peer);
// Called when the socket has become writable: OK, or UNAVAILABLE with the reason.
absl::Status ConnectResult(int fd, const Address& peer);
// Disables Nagle's algorithm, enables keep-alive, bounds unsent bytes; and where the kernel allows
// it (6.15), segments are soon sent again that were lost without a sign.
void Tune(int fd, int unsent_bytes_max);
// Limits the written bytes that wait in the kernel to be sent or acknowledged to `bytes`, and to
// kUnacknowledgedMost at most, the limit of many kernels (net.core.wmem_max). After this call the
// kernel no longer chooses the size by itself, which would not be bound by that limit.
inline constexpr size_t kUnacknowledgedMost = 416 << 10;
void LimitUnacknowledged(int fd, size_t bytes);
std::string PeerName(int fd);
// How long the kernel had unacknowledged bytes.
absl::Duration BusyTime(int fd);

}  // namespace addend::tcp
