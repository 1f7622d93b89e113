// The certificate of an HTTPS server, from files that may change while the process runs.
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "lib/base/mutex.h"
#include "lib/rpc/tls.h"

namespace addend {

// Reads PEM files, as cert-manager mounts them, again when a connection begins and `between_reads`
// has passed since the last time. Unusable contents (a key that belongs to another certificate,
// half a file) are logged once, and the former contents stay in use. TLS 1.2 or newer; clients are
// not asked for a certificate. Safe to use from any thread.
class ServerCertificate {
 public:
  // Of `files` only cert and key count. InvalidArgument names the file and its fault;
  // PermissionDenied if the file may not be read.
  static absl::StatusOr<std::unique_ptr<ServerCertificate>> Load(
      const TlsFiles& files, absl::Duration between_reads = absl::Seconds(1));

  // What a new connection uses; never null.
  std::shared_ptr<SSL_CTX> Context();

 private:
  ServerCertificate(TlsFiles files, absl::Duration between_reads)
      : files_(std::move(files)), between_reads_(between_reads) {}

  absl::Status Read() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const TlsFiles files_;
  const absl::Duration between_reads_;
  Mutex mu_;
  absl::Time read_at_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  std::string in_use_ ABSL_GUARDED_BY(mu_);  // the texts of both files
  std::string told_ ABSL_GUARDED_BY(mu_);    // the last logged error
  std::shared_ptr<SSL_CTX> context_ ABSL_GUARDED_BY(mu_);
};

}  // namespace addend
