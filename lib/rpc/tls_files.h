// Reads and validates the files of TlsIdentity and ServerCertificate. Internal to lib/rpc.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "lib/rpc/tls.h"

namespace addend::internal {

struct TlsMaterial {
  std::string cert;  // PEM texts, as in the files
  std::string key;
  std::string ca;
  std::string names;    // of the certificate: "DNS:addend, IP Address:10.0.0.1"
  absl::Time valid_to;  // of the certificate

  // Compares the files' contents.
  bool operator==(const TlsMaterial& other) const {
    return cert == other.cert && key == other.key && ca == other.ca;
  }
};

// The contents of the three files, if they can be used together. InvalidArgument or
// PermissionDenied names the file and its fault. An expired certificate is accepted here, since it
// will be replaced.
absl::StatusOr<TlsMaterial> ReadTlsFiles(const TlsFiles& files);

// The contents of `cert` and `key` only.
absl::StatusOr<TlsMaterial> ReadCertificateAndKey(const TlsFiles& files);

}  // namespace addend::internal
