// Why a TLS handshake fails. Internal to lib/rpc.
#pragma once

#include <string>

#include "lib/rpc/tls.h"

namespace addend::internal {

// Shakes hands with `target` ("host:port") as gRPC does, because gRPC does not say why it could not
// ("Socket closed", where the server refuses our certificate), and returns what is wrong in words
// that name the file or the flag; empty if nothing is, or nobody answers. `identity`: of this
// process, null for plain text. Blocks for at most about a second.
std::string WhyTlsFails(const std::string& target, const TlsIdentity* identity);

}  // namespace addend::internal
