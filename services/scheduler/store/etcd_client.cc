// Calls to an etcd cluster.
#include "services/scheduler/store/etcd_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "lib/base/clock.h"
#include "lib/base/failure.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/base/text_file.h"
#include "lib/rpc/client.h"
#include "lib/rpc/status.h"

namespace addend {
namespace {

constexpr absl::Duration kFirstAttempt = absl::Seconds(1);
constexpr absl::Duration kLongestAttempt = absl::Seconds(8);
constexpr absl::Duration kBetweenAttempts = absl::Milliseconds(100);

}  // namespace

EtcdClient::EtcdClient(EtcdAccess access)
    : access_(std::move(access)), name_("etcd at " + absl::StrJoin(access_.endpoints, ",")) {
  for (const std::string& endpoint : access_.endpoints) {
    const auto channel = Dial(endpoint, access_.identity.get());
    endpoints_.push_back({etcdserverpb::KV::NewStub(channel), etcdserverpb::Lease::NewStub(channel),
                          etcdserverpb::Auth::NewStub(channel)});
  }
}

absl::Status EtcdClient::LogIn(const Endpoint& endpoint, absl::Duration timeout) {
  const auto password = ReadTextFile(access_.password_file);
  if (!password.ok()) {
    return MakeFailure(FailureKind::kInvalid,
                       absl::StrFormat("--etcd-password-file: %s", Message(password.status())));
  }
  if (password->empty()) {
    return MakeFailure(FailureKind::kInvalid, absl::StrFormat("--etcd-password-file: '%s' is empty",
                                                              access_.password_file));
  }
  grpc::ClientContext context;
  SetDeadline(&context, timeout);
  etcdserverpb::AuthenticateRequest request;
  request.set_name(access_.user);
  request.set_password(*password);
  etcdserverpb::AuthenticateResponse response;
  Begin(&context);
  const absl::Status status = FromGrpc(endpoint.auth->Authenticate(&context, request, &response));
  End(&context);
  if (IsUnreachable(status)) return status;
  if (!status.ok()) {
    return MakeFailure(FailureKind::kPermission,
                       absl::StrFormat("%s does not let the user '%s' in: %s (--etcd-user, "
                                       "--etcd-password-file)",
                                       name_, access_.user, Message(status)));
  }
  MutexLock lock(&mu_);
  token_ = response.token();
  return absl::OkStatus();
}

absl::Status EtcdClient::Call(
    absl::Time deadline,
    absl::FunctionRef<grpc::Status(const Endpoint& endpoint, grpc::ClientContext* context)> call) {
  absl::Duration attempt = kFirstAttempt;
  for (size_t attempts = 1;; ++attempts) {
    size_t used = current_;
    const absl::Duration timeout =
        std::clamp(deadline - SteadyNow(), absl::Milliseconds(50), attempt);
    const auto try_it = [&] {
      grpc::ClientContext context;
      SetDeadline(&context, timeout);
      Begin(&context);
      const absl::Status status = FromGrpc(call(endpoints_[used], &context));
      End(&context);
      return status;
    };
    absl::Status status = try_it();
    // There is no token yet, or etcd has forgotten it.
    if (!access_.user.empty() && !status.ok() && !IsUnreachable(status)) {
      status = LogIn(endpoints_[used], timeout);
      if (status.ok()) status = try_it();
    }
    if (!IsUnreachable(status)) {
      if (status.ok()) return status;
      return absl::Status(status.code(), absl::StrFormat("%s: %s", name_, status.message()));
    }
    if (SteadyNow() >= deadline) {
      return MakeFailure(FailureKind::kTemporary,
                         absl::StrFormat("%s does not answer (%s)", name_, ShortReason(status)));
    }
    current_.compare_exchange_strong(used, (used + 1) % endpoints_.size());
    // On a machine that is overloaded every endpoint may need longer.
    if (attempts % endpoints_.size() == 0) attempt = std::min(2 * attempt, kLongestAttempt);
    if (!Pause(kBetweenAttempts)) return absl::CancelledError("this scheduler ends");
  }
}

void EtcdClient::Begin(grpc::ClientContext* context) {
  MutexLock lock(&mu_);
  if (!token_.empty()) context->AddMetadata("token", token_);
  running_.insert(context);
}

void EtcdClient::End(grpc::ClientContext* context) {
  MutexLock lock(&mu_);
  running_.erase(context);
}

void EtcdClient::Stop() {
  stop_.Stop();
  MutexLock lock(&mu_);
  for (grpc::ClientContext* context : running_) context->TryCancel();
}

absl::StatusOr<etcdserverpb::RangeResponse> EtcdClient::Range(
    const etcdserverpb::RangeRequest& request, absl::Time deadline) {
  etcdserverpb::RangeResponse response;
  ADDEND_RETURN_IF_ERROR(Call(deadline, [&](const Endpoint& endpoint, auto* context) {
    return endpoint.kv->Range(context, request, &response);
  }));
  return response;
}

absl::StatusOr<etcdserverpb::TxnResponse> EtcdClient::Txn(const etcdserverpb::TxnRequest& request,
                                                          absl::Time deadline) {
  etcdserverpb::TxnResponse response;
  ADDEND_RETURN_IF_ERROR(Call(deadline, [&](const Endpoint& endpoint, auto* context) {
    return endpoint.kv->Txn(context, request, &response);
  }));
  return response;
}

absl::StatusOr<etcdserverpb::LeaseGrantResponse> EtcdClient::GrantLease(absl::Duration ttl,
                                                                        absl::Time deadline) {
  etcdserverpb::LeaseGrantRequest request;
  request.set_ttl(std::max<int64_t>(1, absl::ToInt64Seconds(absl::Ceil(ttl, absl::Seconds(1)))));
  etcdserverpb::LeaseGrantResponse response;
  ADDEND_RETURN_IF_ERROR(Call(deadline, [&](const Endpoint& endpoint, auto* context) {
    return endpoint.lease->LeaseGrant(context, request, &response);
  }));
  return response;
}

// A stream with a single request and a single answer.
absl::Status EtcdClient::KeepLease(int64_t lease, absl::Time deadline) {
  int64_t ttl = 0;
  ADDEND_RETURN_IF_ERROR(Call(deadline, [&](const Endpoint& endpoint, auto* context) {
    const auto stream = endpoint.lease->LeaseKeepAlive(context);
    etcdserverpb::LeaseKeepAliveRequest request;
    request.set_id(lease);
    etcdserverpb::LeaseKeepAliveResponse response;
    const bool answered = stream->Write(request) && stream->Read(&response);
    if (answered) ttl = response.ttl();
    stream->WritesDone();
    const grpc::Status status = stream->Finish();
    return answered ? grpc::Status::OK : status;
  }));
  return ttl > 0 ? absl::OkStatus() : absl::NotFoundError("the lease has ended");
}

void EtcdClient::RevokeLease(int64_t lease, absl::Time deadline) {
  etcdserverpb::LeaseRevokeRequest request;
  request.set_id(lease);
  Call(deadline, [&](const Endpoint& endpoint, auto* context) {
    etcdserverpb::LeaseRevokeResponse response;
    return endpoint.lease->LeaseRevoke(context, request, &response);
  }).IgnoreError();  // it ends by itself
}

}  // namespace addend
