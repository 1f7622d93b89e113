// --tls-cert, --tls-key, --tls-ca, --tls-server-name and --insecure: one definition for all
// binaries.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "lib/rpc/tls.h"

namespace addend {

// Reads the parsed flags, which are declared in tls_options.cc, and sets the identity of this
// process from them; destroying the result removes the identity. Returns null without the flags:
// plain text, which is logged. INVALID_ARGUMENT names the flag: --insecure if plain text has to be
// requested.
enum class PlainText { kIfAskedFor, kAllowed };
absl::StatusOr<std::unique_ptr<TlsIdentity>> StartTls(PlainText plain_text);

}  // namespace addend
