#include <grpcpp/support/sync_stream.h>

#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/exit_codes.h"
#include "lib/base/status_macros.h"
#include "lib/member/member.h"
#include "lib/member/session.h"
#include "lib/rpc/status.h"

namespace addend {

using internal::Session;

struct ServerMember::Impl {
  Impl(const MemberOptions& options, v1::RegisterServerRequest request, UpdateFn on_update)
      : request(std::move(request)), on_update(std::move(on_update)), session(options) {}

  absl::StatusOr<Session::Registered> Register(grpc::ClientContext* context,
                                               const v1::MemberId* previous);
  absl::Status Watch(const v1::MemberId& id, grpc::ClientContext* context);
  absl::Status Acknowledge(const v1::MemberId& id, const v1::ServerUpdate& update);

  const v1::RegisterServerRequest request;
  const UpdateFn on_update;
  Session session;  // last: its threads use the others
};

absl::StatusOr<Session::Registered> ServerMember::Impl::Register(grpc::ClientContext* context,
                                                                 const v1::MemberId* previous) {
  v1::RegisterServerResponse response;
  ADDEND_RETURN_IF_ERROR(FromGrpc(session.stub()->RegisterServer(context, request, &response)));
  // The agent of a colocated server has registered with the old number.
  if (previous != nullptr && !request.colocated_job().empty() &&
      previous->server_id() != response.server_id()) {
    return WithExitCode(
        absl::FailedPreconditionError(absl::StrFormat("the scheduler knows colocated server %d as "
                                                      "%d after it came back; start the agent anew",
                                                      previous->server_id(), response.server_id())),
        kExitTemporary);
  }
  Session::Registered registered;
  registered.id.set_server_id(response.server_id());
  registered.id.set_incarnation(request.incarnation());
  registered.lease_s = response.lease_s();
  return registered;
}

absl::Status ServerMember::Impl::Watch(const v1::MemberId& id, grpc::ClientContext* context) {
  v1::WatchRequest watch;
  *watch.mutable_member() = id;
  const auto reader = session.stub()->WatchServer(context, watch);
  v1::ServerUpdate update;
  while (reader->Read(&update)) {
    session.WatchWorks();
    if (const absl::Status status = Acknowledge(id, update); !status.ok()) {
      // Without an answer the scheduler waits for ever: a new watch brings the update once more.
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
  auto impl = std::make_unique<Impl>(options, std::move(request), std::move(on_update));
  ADDEND_RETURN_IF_ERROR(impl->session.Join(
      {.register_member = [impl = impl.get()](
                              auto* context,
                              auto* previous) { return impl->Register(context, previous); },
       .beat = std::move(on_beat),
       .watch = [impl = impl.get()](const auto& id,
                                    auto* context) { return impl->Watch(id, context); }}));
  return std::unique_ptr<ServerMember>(new ServerMember(std::move(impl)));
}

uint32_t ServerMember::server_id() const { return impl_->session.id().server_id(); }
void ServerMember::Leave() { impl_->session.Leave(); }

}  // namespace addend
