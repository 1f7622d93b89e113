// --tls-cert, --tls-key, --tls-ca, --tls-server-name and --insecure: one definition for all
// binaries.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "lib/rpc/tls.h"

namespace addend {

// Reads the parsed flags, which are declared in tls_options.cc, and makes what they say the
// identity of this process, until the result is destroyed. Null without the flags: plain text, of
// which the log is told. INVALID_ARGUMENT names the flag, which is --insecure where plain text has
// to be asked for.
enum class PlainText { kIfAskedFor, kAllowed };
absl::StatusOr<std::unique_ptr<TlsIdentity>> StartTls(PlainText plain_text);

}  // namespace addend
