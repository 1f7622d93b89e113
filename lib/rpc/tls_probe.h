// Finds out why a TLS handshake fails. Internal to lib/rpc.
#pragma once

#include <string>

#include "lib/rpc/tls.h"

namespace addend::internal {

// Repeats gRPC's handshake with `target` ("host:port"), because gRPC does not report the cause
// ("Socket closed" if the server refuses this process's certificate). Returns a reason that names
// the file or the flag; empty if the handshake succeeds or nothing answers. `identity` of this
// process, null for plain text. Blocks for at most about a second.
std::string WhyTlsFails(const std::string& target, const TlsIdentity* identity);

}  // namespace addend::internal
