// Mutual TLS between Addend's processes, from files that may change while the process runs.
#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace addend {

// PEM files, as cert-manager mounts them.
struct TlsFiles {
  std::string cert;  // this process's certificate and the intermediate certificates
  std::string key;   // its private key
  std::string ca;    // the authorities whose certificates are accepted
  // The name that servers' certificates must carry; empty: the dialled host.
  std::string server_name;
  std::string purpose = "the control plane";  // for the log
};

// The identity of this process and the authorities that it trusts. Both ends of a connection
// present a certificate, and each accepts only certificates that its --tls-ca has signed.
//
// The files are read again every second. Unusable contents (a key that belongs to another
// certificate, half a file) are logged once, and the former contents stay in use. New connections
// use the latest contents; open connections stay. Has threads of its own; must outlive every
// channel and server that uses it. Safe to use from any thread.
class TlsIdentity {
 public:
  // InvalidArgument names the file and its fault; PermissionDenied if the file may not be read.
  static absl::StatusOr<std::unique_ptr<TlsIdentity>> Load(const TlsFiles& files);
  ~TlsIdentity();
  TlsIdentity(const TlsIdentity&) = delete;
  TlsIdentity& operator=(const TlsIdentity&) = delete;

  const TlsFiles& files() const;
  const std::shared_ptr<grpc::ChannelCredentials>& channel_credentials() const;
  const std::shared_ptr<grpc::ServerCredentials>& server_credentials() const;

 private:
  struct Impl;
  explicit TlsIdentity(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

// Sets the identity of this process, which Dial and RpcServer::Start use from then on; null: plain
// text. It stays the caller's.
void SetProcessIdentity(const TlsIdentity* identity);
const TlsIdentity* ProcessIdentity();

}  // namespace addend
