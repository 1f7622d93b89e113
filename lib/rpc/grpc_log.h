// gRPC's own log lines. Internal to lib/rpc.
#pragma once

namespace addend::internal {

// Sends them to our log, at debug level: whatever matters comes back as a status, and is told of
// once, in our words. What does not is a TLS handshake that a server breaks off: one warning per
// reason in 10 s. Any number of times, from any thread.
void RouteGrpcLog();

}  // namespace addend::internal
