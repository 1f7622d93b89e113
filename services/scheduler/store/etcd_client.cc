// Calls to an etcd cluster.
#include "services/scheduler/store/etcd_client.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "lib/base/clock.h"
#include "lib/base/failure.h"
#include "lib/base/status_macros.h"
#include "lib/rpc/client.h"
#include "lib/rpc/status.h"

namespace addend {
namespace {

constexpr absl::Duration kFirstAttempt = absl::Seconds(1);
constexpr absl::Duration kLongestAttempt = absl::Seconds(8);
constexpr absl::Duration kBetweenAttempts = absl::Milliseconds(100);

}  // namespace

EtcdClient::EtcdClient(std::vector<std::string> endpoints)
    : name_("etcd at " + absl::StrJoin(endpoints, ",")) {
  for (const std::string& endpoint : endpoints) {
    const auto channel = Dial(endpoint, nullptr);  // etcd has authorities of its own
    endpoints_.push_back(
        {etcdserverpb::KV::NewStub(channel), etcdserverpb::Lease::NewStub(channel)});
  }
}

absl::Status EtcdClient::Call(
    absl::Time deadline,
    absl::FunctionRef<grpc::Status(const Endpoint& endpoint, grpc::ClientContext* context)> call) {
  absl::Duration attempt = kFirstAttempt;
  for (size_t attempts = 1;; ++attempts) {
    size_t used = current_;
    grpc::ClientContext context;
    SetDeadline(&context, std::clamp(deadline - SteadyNow(), absl::Milliseconds(50), attempt));
    Begin(&context);
    const absl::Status status = FromGrpc(call(endpoints_[used], &context));
    End(&context);
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

bool EtcdClient::Pause(absl::Duration duration) {
  const auto until = std::chrono::steady_clock::now() + absl::ToChronoMicroseconds(duration);
  MutexLock lock(&mu_);
  while (!stop_ && stopped_.WaitUntil(&mu_, until)) {
  }
  return !stop_;
}

void EtcdClient::Begin(grpc::ClientContext* context) {
  MutexLock lock(&mu_);
  running_.insert(context);
}

void EtcdClient::End(grpc::ClientContext* context) {
  MutexLock lock(&mu_);
  running_.erase(context);
}

void EtcdClient::Stop() {
  MutexLock lock(&mu_);
  stop_ = true;
  for (grpc::ClientContext* context : running_) context->TryCancel();
  stopped_.NotifyAll();
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
