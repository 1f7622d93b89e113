// gRPC in this process: how long it lasts, and its log lines. Internal to lib/rpc.
#pragma once

namespace addend::internal {

// Initialises gRPC for as long as the process lasts, and routes its log to Addend's at debug level:
// every error that matters is returned as a status and logged where it is handled. The exception is
// a TLS handshake that a server breaks off: a warning per reason in 10 s. May be called repeatedly,
// from any thread.
void BeginGrpc();

}  // namespace addend::internal
