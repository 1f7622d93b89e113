// Calls to an etcd cluster of several endpoints: each call has a deadline, and is repeated at the
// next endpoint until an endpoint answers. Thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "lib/base/mutex.h"
#include "lib/rpc/tls.h"
#include "proto/etcd/etcd.grpc.pb.h"
#include "services/scheduler/store/stop_flag.h"

namespace addend {

// How a scheduler reaches etcd.
struct EtcdAccess {
  std::vector<std::string> endpoints = {};                // "host:port" each; not empty
  std::shared_ptr<const TlsIdentity> identity = nullptr;  // null: plain text
  std::string user = "";                                  // empty: no login
  std::string password_file = "";                         // read at each login
};

class EtcdClient {
 public:
  explicit EtcdClient(EtcdAccess access);

  // All repeat until `deadline`, so they must be idempotent.
  absl::StatusOr<etcdserverpb::RangeResponse> Range(const etcdserverpb::RangeRequest& request,
                                                    absl::Time deadline);
  absl::StatusOr<etcdserverpb::TxnResponse> Txn(const etcdserverpb::TxnRequest& request,
                                                absl::Time deadline);
  absl::StatusOr<etcdserverpb::LeaseGrantResponse> GrantLease(absl::Duration ttl,
                                                              absl::Time deadline);
  // NOT_FOUND: the lease has ended.
  absl::Status KeepLease(int64_t lease, absl::Time deadline);
  void RevokeLease(int64_t lease, absl::Time deadline);
  const std::string& name() const { return name_; }
  // Waits; false at once if Stop() was or is called.
  bool Pause(absl::Duration duration) { return stop_.Pause(duration); }
  // Cancels the calls that are running; from now on calls are tried once.
  void Stop();

 private:
  struct Endpoint {
    std::unique_ptr<etcdserverpb::KV::Stub> kv;
    std::unique_ptr<etcdserverpb::Lease::Stub> lease;
    std::unique_ptr<etcdserverpb::Auth::Stub> auth;
  };
  absl::Status Call(
      absl::Time deadline,
      absl::FunctionRef<grpc::Status(const Endpoint& endpoint, grpc::ClientContext* context)> call);
  // Gets a new token for later calls.
  absl::Status LogIn(const Endpoint& endpoint, absl::Duration timeout);
  // Makes a call known to Stop while it runs.
  void Begin(grpc::ClientContext* context);
  void End(grpc::ClientContext* context);

  const EtcdAccess access_;
  const std::string name_;
  std::vector<Endpoint> endpoints_;
  std::atomic<size_t> current_{0};
  StopFlag stop_;
  Mutex mu_;
  std::string token_ ABSL_GUARDED_BY(mu_);
  std::set<grpc::ClientContext*> running_ ABSL_GUARDED_BY(mu_);
};

}  // namespace addend
