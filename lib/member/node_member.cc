// A node's member: the session's two threads, and a third that sends the queued reports in order.
// The queue decouples the agent's thread from the scheduler: reporting never blocks, and an outage
// of the scheduler only delays the reports.

#include <grpcpp/support/sync_stream.h>

#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/auth/secret.h"
#include "lib/base/clock.h"
#include "lib/base/failure.h"
#include "lib/base/log.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/member/announced.h"
#include "lib/member/member.h"
#include "lib/member/node_memory.h"
#include "lib/member/report_queue.h"
#include "lib/member/session.h"
#include "lib/rpc/request_bounds.h"
#include "lib/rpc/status.h"

namespace addend {

using internal::NodeAnnounced;
using internal::NodeMemory;
using internal::ReportQueue;
using internal::Session;

struct NodeMember::Impl {
  Impl(const MemberOptions& options, v1::RegisterNodeRequest request, UpdateFn on_update)
      : request(std::move(request)), on_update(std::move(on_update)), session(options) {}
  ~Impl() { StopSending(); }

  absl::StatusOr<Session::Registered> Register(grpc::ClientContext* context,
                                               const v1::MemberId* previous);
  absl::Status Watch(const v1::MemberId& id, grpc::ClientContext* context);
  void RunSender();
  void OnRefused(const Report& report, const absl::Status& status);
  void StopSending();

  const v1::RegisterNodeRequest request;
  const UpdateFn on_update;
  v1::RegisterNodeResponse first_answer;  // constant once Join has returned
  NodeAnnounced announced;                // belongs to the watch thread
  NodeMemory memory;
  ReportQueue reports;
  Session session;
  std::thread sender;
};

absl::StatusOr<Session::Registered> NodeMember::Impl::Register(grpc::ClientContext* context,
                                                               const v1::MemberId* previous) {
  v1::RegisterNodeResponse response;
  v1::RegisterNodeRequest now = request;
  if (previous != nullptr) {
    now.set_former_job_id(previous->job_id());
    memory.AddTo(&now);
  }
  ADDEND_RETURN_IF_ERROR(FromGrpc(session.stub()->RegisterNode(context, now, &response)));
  if (previous == nullptr) {
    first_answer = response;
  } else if (previous->job_id() != response.job_id()) {
    return WithKind(absl::FailedPreconditionError(
                        absl::StrFormat("the scheduler knows job '%s' as job %d, not as %d as "
                                        "before: its state is lost; restart the agent",
                                        request.job(), response.job_id(), previous->job_id())),
                    FailureKind::kTemporary);
  }
  Session::Registered registered;
  registered.id.set_job_id(response.job_id());
  registered.id.set_node_rank(request.node_rank());
  registered.id.set_incarnation(request.incarnation());
  registered.id.set_key(request.member_key());
  registered.lease_s = response.lease_s();
  KeepClusterTime(response.now_unix_s());
  return registered;
}

absl::Status NodeMember::Impl::Watch(const v1::MemberId& id, grpc::ClientContext* context) {
  v1::WatchRequest watch;
  *watch.mutable_member() = id;
  announced.AddTo(&watch);
  const auto reader = session.stub()->WatchNode(context, watch);
  v1::NodeUpdate update;
  while (reader->Read(&update)) {
    session.WatchWorks();
    announced.Note(update);
    memory.Note(update);
    // A scheduler that was killed may have told nobody of a failure that it had been told of.
    if (update.full()) {
      if (auto failure = memory.Unconfirmed()) reports.Add(*std::move(failure));
    }
    on_update(update);
  }
  return FromGrpc(reader->Finish());
}

namespace {

using Stub = v1::Scheduler::Stub;

template <typename Request, typename Response>
grpc::Status Call(Stub* stub, grpc::ClientContext* context, const Request& request,
                  grpc::Status (Stub::*call)(grpc::ClientContext*, const Request&, Response*)) {
  Response response;
  return (stub->*call)(context, request, &response);
}

// The call of each report.
constexpr auto CallOf(const v1::DeclareRequest&) { return &Stub::Declare; }
constexpr auto CallOf(const v1::UndeclareRequest&) { return &Stub::Undeclare; }
constexpr auto CallOf(const v1::ReportTrainersRequest&) { return &Stub::ReportTrainers; }
constexpr auto CallOf(const v1::ReportIdleRequest&) { return &Stub::ReportIdle; }
constexpr auto CallOf(const v1::ReportFailureRequest&) { return &Stub::ReportFailure; }
constexpr auto CallOf(const v1::ReportServerLostRequest&) { return &Stub::ReportServerLost; }
constexpr auto CallOf(const v1::AckChangeRequest&) { return &Stub::AckChange; }

}  // namespace

void NodeMember::Impl::RunSender() {
  Report report;
  while (reports.Take(&report)) {
    memory.Note(report);
    const absl::Status status =
        session.CallUntilAnswered([&](grpc::ClientContext* context, const v1::MemberId& id) {
          return std::visit(
              [&](auto& request) {
                *request.mutable_member() = id;
                ShortenSentences(&request);
                return Call(session.stub(), context, request, CallOf(request));
              },
              report);
        });
    if (!status.ok() && !session.stopping()) OnRefused(report, status);
    reports.Done();
  }
}

void NodeMember::Impl::OnRefused(const Report& report, const absl::Status& status) {
  const uint32_t generation = internal::GenerationOf(report);
  if (absl::IsFailedPrecondition(status) || absl::IsAborted(status)) {
    spdlog::debug("a report of generation {} came too late: {}", generation, Message(status));
    return;
  }
  spdlog::error("the scheduler refused a report of generation {}: {}", generation, Message(status));
  if (absl::IsCancelled(status) || std::holds_alternative<v1::ReportFailureRequest>(report)) return;
  // Trainers wait for the answer to the refused report, so they have to learn that it will not
  // come.
  Report failure = report::Failed(Generation(generation), status);
  std::get<v1::ReportFailureRequest>(failure).set_kind(TellFailure(FailureKind::kInternal).name);
  reports.AddFront(std::move(failure));
}

void NodeMember::Impl::StopSending() {
  reports.Close();
  session.Stop();  // ends the call that the sender may be in
  if (sender.joinable()) sender.join();
}

NodeMember::NodeMember(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
NodeMember::~NodeMember() = default;

absl::StatusOr<std::unique_ptr<NodeMember>> NodeMember::Join(const MemberOptions& options,
                                                             v1::RegisterNodeRequest request,
                                                             UpdateFn on_update, BeatFn on_beat,
                                                             ServerMember* colocated) {
  request.set_member_key(std::string(auth::TextOf(auth::NewSecret())));
  auto impl = std::make_unique<Impl>(options, std::move(request), std::move(on_update));
  ADDEND_RETURN_IF_ERROR(impl->session.Join(
      {.register_member = [impl = impl.get()](
                              auto* context,
                              auto* previous) { return impl->Register(context, previous); },
       .beat =
           [on_beat = std::move(on_beat), colocated](v1::HeartbeatRequest* beat) {
             on_beat(beat);
             if (colocated != nullptr) colocated->FillCarried(beat);
           },
       .on_beat_answer =
           [colocated](const v1::HeartbeatResponse& answer, size_t scheduler) {
             if (colocated != nullptr && answer.took_colocated()) colocated->WasCarried(scheduler);
           },
       .watch = [impl = impl.get()](const auto& id,
                                    auto* context) { return impl->Watch(id, context); }}));
  impl->sender = std::thread([impl = impl.get()] { impl->RunSender(); });
  return std::unique_ptr<NodeMember>(new NodeMember(std::move(impl)));
}

const v1::RegisterNodeResponse& NodeMember::registration() const { return impl_->first_answer; }

void NodeMember::Send(Report report) { impl_->reports.Add(std::move(report)); }

void NodeMember::BeatSoon() { impl_->session.BeatSoon(); }

bool NodeMember::Flush(absl::Duration timeout) {
  return impl_->reports.WaitUntilEmpty(std::chrono::steady_clock::now() +
                                       absl::ToChronoMicroseconds(timeout));
}

void NodeMember::Leave() {
  impl_->StopSending();
  impl_->session.Leave();
}

}  // namespace addend
