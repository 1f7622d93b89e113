// gRPC's own log lines. Internal to lib/rpc.
#pragma once

namespace addend::internal {

// Routes gRPC's log to Addend's log at debug level: every error that matters is returned as a
// status and logged where it is handled. The exception is a TLS handshake that a server breaks off:
// a warning per reason in 10 s. May be called repeatedly, from any thread.
void RouteGrpcLog();

}  // namespace addend::internal
