#include "lib/rpc/tls_options.h"

#include <string>

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "lib/base/log.h"
#include "lib/base/status_macros.h"

ABSL_FLAG(std::string, tls_cert, "",
          "PEM file with this process's certificate; with --tls-key and --tls-ca it makes gRPC "
          "mutual TLS; read again when it changes");
ABSL_FLAG(std::string, tls_key, "",
          "PEM file with the private key of the certificate in --tls-cert");
ABSL_FLAG(std::string, tls_ca, "",
          "PEM file with the authorities whose certificates this process accepts");
ABSL_FLAG(
    std::string, tls_server_name, "",
    "name that the certificates of called servers must carry; default: the host of their address");
ABSL_FLAG(bool, insecure, false,
          "use plain-text gRPC if no certificates are given: any process that can read or write on "
          "the network between the services can then read and forge their messages");

namespace addend {

absl::StatusOr<std::unique_ptr<TlsIdentity>> StartTls(PlainText plain_text) {
  const TlsFiles files{.cert = absl::GetFlag(FLAGS_tls_cert),
                       .key = absl::GetFlag(FLAGS_tls_key),
                       .ca = absl::GetFlag(FLAGS_tls_ca),
                       .server_name = absl::GetFlag(FLAGS_tls_server_name)};
  const int given = !files.cert.empty() + !files.key.empty() + !files.ca.empty();
  if (given == 0 && files.server_name.empty()) {
    if (plain_text == PlainText::kAllowed) return nullptr;
    if (!absl::GetFlag(FLAGS_insecure)) {
      return absl::InvalidArgumentError(
          "gRPC would be plain text: give --tls-cert, --tls-key and --tls-ca, or accept it with "
          "--insecure");
    }
    spdlog::warn("the control plane is plain text: --tls-cert, --tls-key and --tls-ca protect it");
    return nullptr;
  }
  if (given != 3) {
    const char* missing = files.cert.empty() ? "cert" : files.key.empty() ? "key" : "ca";
    return absl::InvalidArgumentError(absl::StrFormat(
        "--tls-%s is missing: mutual TLS needs --tls-cert, --tls-key and --tls-ca", missing));
  }
  ADDEND_ASSIGN_OR_RETURN(auto identity, TlsIdentity::Load(files));
  SetProcessIdentity(identity.get());
  return identity;
}

}  // namespace addend
