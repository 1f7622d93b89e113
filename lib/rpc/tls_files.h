// The files of TlsIdentity: reading and judging them. Internal to lib/rpc.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "lib/rpc/tls.h"

namespace addend::internal {

struct TlsMaterial {
  std::string cert;  // PEM texts, as they stand in the files
  std::string key;
  std::string ca;
  std::string names;    // of the certificate: "DNS:addend, IP Address:10.0.0.1"
  absl::Time valid_to;  // of the certificate

  // The same files' contents.
  bool operator==(const TlsMaterial& other) const {
    return cert == other.cert && key == other.key && ca == other.ca;
  }
};

// What the three files hold, if they can be used together: InvalidArgument or PermissionDenied says
// what is wrong in which file. That a certificate has expired is not wrong here: it will be
// replaced.
absl::StatusOr<TlsMaterial> ReadTlsFiles(const TlsFiles& files);

}  // namespace addend::internal
