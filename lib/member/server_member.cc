// A server's member: the watch thread carries out each update and acknowledges it before it reads
// the next. The scheduler tells the nodes of a new tensor only after all its servers have
// acknowledged the reservation.

#include <grpcpp/support/sync_stream.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/auth/secret.h"
#include "lib/base/clock.h"
#include "lib/base/failure.h"
#include "lib/base/log.h"
#include "lib/base/mutex.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/member/announced.h"
#include "lib/member/member.h"
#include "lib/member/session.h"
#include "lib/rpc/request_bounds.h"
#include "lib/rpc/status.h"

namespace addend {

using internal::ServerAnnounced;
using internal::Session;

namespace {

constexpr absl::Duration kDrainInterval = absl::Seconds(1);

}  // namespace

struct ServerMember::Impl {
  Impl(const MemberOptions& options, v1::RegisterServerRequest request, UpdateFn on_update)
      : request(std::move(request)),
        on_update(std::move(on_update)),
        on_drained(options.on_drained),
        session(options) {}

  absl::StatusOr<Session::Registered> Register(grpc::ClientContext* context,
                                               const v1::MemberId* previous);
  absl::Status Watch(const v1::MemberId& id, grpc::ClientContext* context);
  absl::Status Acknowledge(const v1::MemberId& id, const v1::ServerUpdate& update);
  bool WaitUntilDrained(absl::Duration timeout) {
    MutexLock lock(&mu);
    const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoMicroseconds(timeout);
    while (!drained && changed.WaitUntil(&mu, deadline)) {
    }
    return drained;
  }

  const v1::RegisterServerRequest request;
  const UpdateFn on_update;
  const std::function<void()> on_drained;
  Mutex mu;
  CondVar changed;
  ServerAnnounced announced ABSL_GUARDED_BY(mu);
  bool drained ABSL_GUARDED_BY(mu) = false;
  Session session;  // last, because its threads use the members above
};

absl::StatusOr<Session::Registered> ServerMember::Impl::Register(grpc::ClientContext* context,
                                                                 const v1::MemberId* previous) {
  v1::RegisterServerResponse response;
  v1::RegisterServerRequest now = request;
  if (previous != nullptr) {
    now.set_former_server_id(previous->server_id());
    const MutexLock lock(&mu);
    announced.AddTo(&now);
  }
  ADDEND_RETURN_IF_ERROR(FromGrpc(session.stub()->RegisterServer(context, now, &response)));
  // The agent of a colocated server has registered under the old number.
  if (previous != nullptr && !request.colocated_job().empty() &&
      previous->server_id() != response.server_id()) {
    return WithKind(absl::FailedPreconditionError(
                        absl::StrFormat("the scheduler gave colocated server %d the number %d when "
                                        "it came back; restart the agent (if it was taken for "
                                        "lost, the scheduler's log says why)",
                                        previous->server_id(), response.server_id())),
                    FailureKind::kTemporary);
  }
  Session::Registered registered;
  registered.id.set_server_id(response.server_id());
  registered.id.set_incarnation(request.incarnation());
  registered.id.set_key(request.member_key());
  registered.lease_s = response.lease_s();
  KeepClusterTime(response.now_unix_s());
  return registered;
}

absl::Status ServerMember::Impl::Watch(const v1::MemberId& id, grpc::ClientContext* context) {
  v1::WatchRequest watch;
  *watch.mutable_member() = id;
  {
    const MutexLock lock(&mu);
    announced.AddTo(&watch);
  }
  const auto reader = session.stub()->WatchServer(context, watch);
  v1::ServerUpdate update;
  while (reader->Read(&update)) {
    session.WatchWorks();
    {
      const MutexLock lock(&mu);
      announced.Note(update);
    }
    if (const absl::Status status = Acknowledge(id, update); !status.ok()) {
      // The scheduler waits for this acknowledgement without end: a new watch makes it send the
      // update again.
      context->TryCancel();
      (void)reader->Finish();
      return status;
    }
  }
  return FromGrpc(reader->Finish());
}

absl::Status ServerMember::Impl::Acknowledge(const v1::MemberId& id,
                                             const v1::ServerUpdate& update) {
  v1::AckReservationRequest ack = on_update(update);
  *ack.mutable_member() = id;
  ack.set_update_id(update.update_id());
  ShortenSentences(&ack);
  if (update.drained()) {
    MutexLock lock(&mu);
    drained = true;
    changed.NotifyAll();
  }
  if (update.drained() && on_drained) on_drained();
  return session.Call(absl::Seconds(5), [&](grpc::ClientContext* context) {
    v1::AckReservationResponse response;
    return session.stub()->AckReservation(context, ack, &response);
  });
}

ServerMember::ServerMember(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ServerMember::~ServerMember() = default;

absl::StatusOr<std::unique_ptr<ServerMember>> ServerMember::Join(const MemberOptions& options,
                                                                 v1::RegisterServerRequest request,
                                                                 UpdateFn on_update,
                                                                 BeatFn on_beat) {
  request.set_member_key(std::string(auth::TextOf(auth::NewSecret())));
  auto impl = std::make_unique<Impl>(options, std::move(request), std::move(on_update));
  ADDEND_RETURN_IF_ERROR(impl->session.Join(
      {.register_member = [impl = impl.get()](
                              auto* context,
                              auto* previous) { return impl->Register(context, previous); },
       .beat = std::move(on_beat),
       .on_beat_answer = nullptr,
       .watch = [impl = impl.get()](const auto& id,
                                    auto* context) { return impl->Watch(id, context); }}));
  return std::unique_ptr<ServerMember>(new ServerMember(std::move(impl)));
}

bool ServerMember::Drain(absl::Duration timeout, absl::FunctionRef<bool()> is_needed) {
  const absl::Time deadline = SteadyNow() + timeout;
  while (SteadyNow() < deadline) {  // repeated, because a restarted scheduler may have lost the
                                    // request
    v1::DrainRequest request;
    request.set_server_id(server_id());
    request.set_member_key(impl_->session.id().key());
    const absl::Status status = impl_->session.Call(kDrainInterval, [&](auto* context) {
      v1::DrainResponse response;
      return impl_->session.stub()->Drain(context, request, &response);
    });
    if (!status.ok()) spdlog::debug("cannot drain yet: {}", Message(status));
    if (IsUnreachable(status) && !is_needed()) return true;
    if (impl_->WaitUntilDrained(std::min(kDrainInterval, deadline - SteadyNow()))) return true;
  }
  return false;
}

// The incidents are of the same job, and are sent again with the node's if there is no answer.
void ServerMember::FillCarried(v1::HeartbeatRequest* of_node) {
  v1::HeartbeatRequest own;
  impl_->session.FillBeat(&own);
  v1::ColocatedBeat* const carried = of_node->mutable_colocated();
  *carried->mutable_member() = std::move(*own.mutable_member());
  *carried->mutable_traffic() = std::move(*own.mutable_traffic());
  carried->set_activity(std::move(*own.mutable_activity()));
  carried->set_memory_used_bytes(own.memory_used_bytes());
  *carried->mutable_troubles() = std::move(*own.mutable_troubles());
  for (v1::Incident& incident : *own.mutable_incidents()) {
    *of_node->add_incidents() = std::move(incident);
  }
}

void ServerMember::WasCarried(size_t scheduler) { impl_->session.WasCarried(scheduler); }

uint32_t ServerMember::server_id() const { return impl_->session.id().server_id(); }
void ServerMember::Leave() { impl_->session.Leave(); }

}  // namespace addend
