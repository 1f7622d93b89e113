// Mutual TLS between our processes, from files that may change while the process runs.
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
  std::string cert;  // this process's certificate, and those between it and the authority's
  std::string key;   // its private key
  std::string ca;    // the authorities whose certificates are accepted
  // The name that servers' certificates must carry; empty: the host that is dialled.
  std::string server_name;
};

// Who this process is, and whom it believes. Both ends of a connection show a certificate, and each
// accepts only those that its --tls-ca has signed.
//
// The files are read again every second. What cannot be used (a key of another certificate, half a
// file) is told of once, and what was read before stays in use. New connections use what was read
// last; those that are open stay. Has threads of its own; must outlive every channel and server
// that uses it. Safe to use from any thread.
class TlsIdentity {
 public:
  // InvalidArgument names the file and what is wrong with it; PermissionDenied if it may not be
  // read.
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

// The identity of this process, which Dial and RpcServer::Start use from now on; null: plain text.
// It stays the caller's.
void SetProcessIdentity(const TlsIdentity* identity);
const TlsIdentity* ProcessIdentity();

}  // namespace addend
