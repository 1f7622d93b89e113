// The gRPC side of the scheduler.
#include "services/scheduler/scheduler_service.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/auth/secret.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/base/utf8.h"
#include "lib/base/version.h"
#include "lib/rpc/request_bounds.h"
#include "lib/rpc/status.h"
#include "services/scheduler/store/format.h"
#include "services/scheduler/written_updates.h"

namespace addend {
namespace {

// The longest part of a member's text in a line of the log.
constexpr size_t kLineBytes = 2000;
// Members may come and go as fast as they can. Sentences that are left out of the log are counted
// there, and a status has the last events.
constexpr uint64_t kReasonsPerSecond = 100;
constexpr uint64_t kRefusalsPerSecond = 10;
constexpr absl::Duration kMetricsInterval = absl::Seconds(1);
constexpr absl::Duration kSoon = absl::Milliseconds(25);

Membership::Options MembershipOptions(const SchedulerService::Options& options,
                                      const Store& store) {
  return {.lease = options.lease,
          .react_to_stragglers = options.react_to_stragglers,
          .version = std::string(Version()),
          .store = store.Describe(),
          .make_key = [] { return std::string(auth::TextOf(auth::NewSecret())); },
          .token_lifetime = options.token_lifetime,
          .servers_digest = options.servers_digest,
          .first_job_number = static_cast<uint64_t>(absl::ToUnixMicros(SteadyNow())),
          .measure_network = options.measure_network,
          .network_places = options.network_places};
}

// Moves the answer of a registration into the response of its call.
template <typename Response>
Outcome<absl::Status> Fill(Outcome<absl::StatusOr<Response>> outcome, Response* response) {
  if (outcome.answer.ok()) *response = *std::move(outcome.answer);
  return {outcome.answer.status(), std::move(outcome.decision)};
}

absl::Status ShuttingDown() { return absl::UnavailableError("the scheduler is shutting down"); }

}  // namespace

absl::StatusOr<std::unique_ptr<SchedulerService>> SchedulerService::Create(Options options) {
  std::unique_ptr<SchedulerService> service(new SchedulerService(std::move(options)));
  ADDEND_RETURN_IF_ERROR(service->Load());
  service->timekeeper_ = std::thread([raw = service.get()] { raw->KeepTime(); });
  return service;
}

SchedulerService::SchedulerService(Options options)
    : on_fatal_(std::move(options.on_fatal)),
      metrics_(options.registry),
      store_(std::move(options.store)),
      membership_(MembershipOptions(options, *store_), SteadyNow()),
      reasons_(kReasonsPerSecond),
      refusals_(kRefusalsPerSecond) {}

SchedulerService::~SchedulerService() {
  Shutdown();
  if (timekeeper_.joinable()) timekeeper_.join();
}

absl::Status SchedulerService::Load() {
  MutexLock lock(&mu_);
  ADDEND_ASSIGN_OR_RETURN(const std::vector<StoreEntry> entries, store_->Load());
  ADDEND_RETURN_IF_ERROR(CheckFormat(store_->Describe(), entries));
  ADDEND_RETURN_IF_ERROR(membership_.Restore(SteadyNow(), entries));
  if (const auto format = FormatToWrite(entries); format.has_value()) {
    ADDEND_RETURN_IF_ERROR(store_->Apply({&*format, 1}));
  }
  const MembershipSummary summary = membership_.Summary();
  spdlog::info("store {}: {} servers, {} nodes, {} tensors", store_->Describe(),
               summary.cpu_servers + summary.colocated_servers, summary.nodes, summary.tensors);
  return absl::OkStatus();
}

void SchedulerService::Shutdown() {
  Streams streams;
  {
    MutexLock lock(&mu_);
    stop_ = true;
    if (closed_.ok()) closed_ = ShuttingDown();
    for (auto& [watch, stream] : server_streams_) streams.push_back(stream);
    for (auto& [watch, stream] : node_streams_) streams.push_back(stream);
    stopping_.NotifyAll();
  }
  for (const auto& stream : streams) {
    stream->End(ToGrpc(ShuttingDown()));
    stream->Pump();
  }
}

v1::GetStatusResponse SchedulerService::Status() {
  std::shared_ptr<const v1::GetStatusResponse> status;
  {
    MutexLock lock(&mu_);
    status = RecentStatus();
  }
  return *status;
}

std::shared_ptr<const v1::GetStatusResponse> SchedulerService::RecentStatus() {
  const absl::Time now = SteadyNow();
  if (now - status_at_ >= kStatusInterval) {
    status_ = std::make_shared<const v1::GetStatusResponse>(membership_.GetStatus(now, {}));
    status_at_ = now;
  }
  return status_;
}

absl::Status SchedulerService::FillStatus(const v1::GetStatusRequest& request,
                                          v1::GetStatusResponse* response) {
  ADDEND_RETURN_IF_ERROR(CheckBounds(request));
  std::shared_ptr<const v1::GetStatusResponse> status;
  {
    MutexLock lock(&mu_);
    if (!closed_.ok()) return closed_;
    status = RecentStatus();
  }
  *response = request.job().empty() ? *status : StatusView::OfJob(*status, request.job());
  return absl::OkStatus();
}

void SchedulerService::KeepTime() {
  absl::Time next_metrics = SteadyNow();
  while (true) {
    absl::Time wake;
    Streams touched;
    {
      MutexLock lock(&mu_);
      if (stop_) return;
      wake = SteadyNow() + kMetricsInterval;
      RunLocked(
          [&wake](Membership& membership, absl::Time now) {
            Outcome<absl::Time> tick = membership.Tick(now);
            wake = tick.answer;
            return Outcome<absl::Status>{absl::OkStatus(), std::move(tick.decision)};
          },
          &touched)
          .IgnoreError();  // RunLocked has told on_fatal_
      if (SteadyNow() >= next_metrics) {
        metrics_.Update(membership_.Summary(), server_streams_.size() + node_streams_.size());
        next_metrics = SteadyNow() + kMetricsInterval;
      }
    }
    for (const auto& stream : touched) stream->Pump();
    // Not more often than this, however many leases end at about the same time.
    const absl::Duration pause =
        std::clamp(wake - SteadyNow(), absl::Milliseconds(20), absl::Milliseconds(500));
    const auto until = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(pause);
    MutexLock lock(&mu_);
    next_look_ = SteadyNow() + pause;
    while (!stop_ && !any_ended_ && !look_now_ && stopping_.WaitUntil(&mu_, until)) {
    }
    look_now_ = false;
    if (stop_) return;
  }
}

absl::Status SchedulerService::Run(const google::protobuf::Message& request, const Event& event) {
  Streams touched;
  // Before the lock: a call that is refused here costs the other callers nothing.
  absl::Status status = CheckBounds(request);
  if (status.ok()) {
    MutexLock lock(&mu_);
    status = RunLocked(event, &touched);
  }
  for (const auto& stream : touched) stream->Pump();
  if (!status.ok()) NoteRefusal(status);
  return status;
}

void SchedulerService::NoteRefusal(const absl::Status& why) {
  metrics_.Refused();
  if (absl::IsNotFound(why)) return spdlog::debug("{}", Message(why));
  MutexLock lock(&refusals_mu_);
  if (const auto others = refusals_.Next(SteadyNow())) {
    spdlog::warn("refused: {}{}", Shortened(Message(why), kLineBytes), *others);
  }
}

void SchedulerService::Say(const std::string& reason) {
  if (const auto others = reasons_.Next(SteadyNow())) {
    spdlog::info("{}{}", Shortened(reason, kLineBytes), *others);
  }
}

absl::Status SchedulerService::RunLocked(const Event& event, Streams* touched) {
  if (!closed_.ok()) return closed_;
  ForgetEndedStreams();
  const absl::Time start = SteadyNow();
  const auto [status, decision] = event(membership_, start);
  if (decision.look_soon && next_look_ > start + kSoon) {
    look_now_ = true;
    stopping_.NotifyAll();
  }
  if (decision.planned > 0) metrics_.Planned(decision.planned, SteadyNow() - start);
  absl::Status stored;
  if (!decision.writes.empty()) {
    const absl::Time began = SteadyNow();
    stored = store_->Apply(decision.writes);
    if (stored.ok()) metrics_.Stored(SteadyNow() - began);
  }
  if (!stored.ok()) {
    closed_ = absl::UnavailableError(Message(stored));
    on_fatal_(std::move(stored));
    return closed_;
  }
  for (const std::string& reason : decision.reasons) Say(reason);
  Deliver(decision, touched);
  return status;
}

void SchedulerService::Deliver(const Decision& decision, Streams* touched) {
  for (const WatchEnd& end : decision.ended) {
    std::shared_ptr<Pumpable> stream;
    if (const auto node = node_streams_.find(end.watch); node != node_streams_.end()) {
      stream = node->second;
    } else if (const auto server = server_streams_.find(end.watch);
               server != server_streams_.end()) {
      stream = server->second;
    }
    if (stream == nullptr) continue;
    stream->End(ToGrpc(end.reason));
    touched->push_back(std::move(stream));
  }
  for (const ServerSend& send : decision.to_servers) {
    const auto found = server_streams_.find(send.watch);
    if (found == server_streams_.end()) continue;
    found->second->Push(send.update);
    touched->push_back(found->second);
  }
  WrittenUpdates written;
  for (const NodeSend& send : decision.to_nodes) {
    const auto found = node_streams_.find(send.watch);
    if (found == node_streams_.end()) continue;
    found->second->Push(written.Of(*send.update));
    touched->push_back(found->second);
  }
}

// Never waits for mu_: this is a thread of gRPC's on which the store's own calls may depend, and
// the thread that holds mu_ may be in such a call.
void SchedulerService::StreamDone(WatchId watch) {
  MutexLock lock(&ended_mu_);
  ended_.push_back(watch);
  any_ended_ = true;
  stopping_.NotifyAll();
}

void SchedulerService::ForgetEndedStreams() {
  std::vector<WatchId> ended;
  {
    MutexLock lock(&ended_mu_);
    ended.swap(ended_);
    any_ended_ = false;
  }
  for (const WatchId watch : ended) {
    membership_.WatchBroke(SteadyNow(), watch);
    server_streams_.erase(watch);
    node_streams_.erase(watch);
  }
}

WatchId SchedulerService::NextWatch() {
  MutexLock lock(&mu_);
  return next_watch_++;
}

grpc::ServerUnaryReactor* SchedulerService::Answer(grpc::CallbackServerContext* context,
                                                   const google::protobuf::Message& request,
                                                   const Event& event) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(Run(request, event)));
  return reactor;
}

template <typename Request>
grpc::ServerUnaryReactor* SchedulerService::Tell(
    grpc::CallbackServerContext* context, const Request& request,
    Outcome<absl::Status> (Membership::*event)(absl::Time, const Request&)) {
  return Answer(context, request, [&](Membership& membership, absl::Time now) {
    return (membership.*event)(now, request);
  });
}

grpc::ServerWriteReactor<v1::ServerUpdate>* SchedulerService::WatchServer(
    grpc::CallbackServerContext*, const v1::WatchRequest* request) {
  const WatchId watch = NextWatch();
  const auto stream = UpdateStream<v1::ServerUpdate>::Create([this, watch] { StreamDone(watch); });
  {
    MutexLock lock(&mu_);
    server_streams_[watch] = stream;
  }
  const absl::Status status = Run(*request, [&](Membership& membership, absl::Time now) {
    return membership.WatchServer(now, *request, watch);
  });
  if (!status.ok()) {
    stream->End(ToGrpc(status));
    stream->Pump();
  }
  return stream.get();
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* SchedulerService::WatchNode(
    grpc::CallbackServerContext*, const grpc::ByteBuffer* request) {
  v1::WatchRequest watch;  // of no member, if the bytes are no WatchRequest
  grpc::ByteBuffer bytes = *request;
  (void)grpc::SerializationTraits<v1::WatchRequest>::Deserialize(&bytes, &watch);
  return OpenWatch(watch);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* SchedulerService::OpenWatch(
    const v1::WatchRequest& request) {
  const WatchId watch = NextWatch();
  const auto stream = UpdateStream<grpc::ByteBuffer>::Create([this, watch] { StreamDone(watch); });
  {
    MutexLock lock(&mu_);
    node_streams_[watch] = stream;
  }
  const absl::Status status = Run(request, [&](Membership& membership, absl::Time now) {
    return membership.WatchNode(now, request, watch);
  });
  if (!status.ok()) {
    stream->End(ToGrpc(status));
    stream->Pump();
  }
  return stream.get();
}

grpc::ServerUnaryReactor* SchedulerService::RegisterServer(grpc::CallbackServerContext* context,
                                                           const v1::RegisterServerRequest* request,
                                                           v1::RegisterServerResponse* response) {
  return Answer(context, *request, [&](Membership& membership, absl::Time now) {
    return Fill(membership.RegisterServer(now, *request), response);
  });
}

grpc::ServerUnaryReactor* SchedulerService::RegisterNode(grpc::CallbackServerContext* context,
                                                         const v1::RegisterNodeRequest* request,
                                                         v1::RegisterNodeResponse* response) {
  return Answer(context, *request, [&](Membership& membership, absl::Time now) {
    return Fill(membership.RegisterNode(now, *request), response);
  });
}

grpc::ServerUnaryReactor* SchedulerService::Heartbeat(grpc::CallbackServerContext* context,
                                                      const v1::HeartbeatRequest* request,
                                                      v1::HeartbeatResponse* response) {
  response->set_now_unix_s(absl::ToDoubleSeconds(SteadyNow() - absl::UnixEpoch()));
  return Answer(context, *request, [&](Membership& membership, absl::Time now) {
    Outcome<absl::Status> outcome = membership.Heartbeat(now, *request);
    if (!outcome.answer.ok()) return outcome;
    response->set_took_colocated(membership.TakeColocated(now, *request));
    membership.ExchangeProbes(now, *request, response);
    return outcome;
  });
}

grpc::ServerUnaryReactor* SchedulerService::Drain(grpc::CallbackServerContext* context,
                                                  const v1::DrainRequest* request,
                                                  v1::DrainResponse*) {
  return Tell(context, *request, &Membership::Drain);
}

grpc::ServerUnaryReactor* SchedulerService::Leave(grpc::CallbackServerContext* context,
                                                  const v1::LeaveRequest* request,
                                                  v1::LeaveResponse*) {
  return Answer(context, *request, [&](Membership& membership, absl::Time now) {
    return membership.Leave(now, request->member());
  });
}

grpc::ServerUnaryReactor* SchedulerService::AckReservation(grpc::CallbackServerContext* context,
                                                           const v1::AckReservationRequest* request,
                                                           v1::AckReservationResponse*) {
  return Tell(context, *request, &Membership::AckReservation);
}

grpc::ServerUnaryReactor* SchedulerService::Declare(grpc::CallbackServerContext* context,
                                                    const v1::DeclareRequest* request,
                                                    v1::DeclareResponse*) {
  return Tell(context, *request, &Membership::Declare);
}

grpc::ServerUnaryReactor* SchedulerService::Undeclare(grpc::CallbackServerContext* context,
                                                      const v1::UndeclareRequest* request,
                                                      v1::UndeclareResponse*) {
  return Tell(context, *request, &Membership::Undeclare);
}

grpc::ServerUnaryReactor* SchedulerService::ReportTrainers(grpc::CallbackServerContext* context,
                                                           const v1::ReportTrainersRequest* request,
                                                           v1::ReportTrainersResponse*) {
  return Tell(context, *request, &Membership::ReportTrainers);
}

grpc::ServerUnaryReactor* SchedulerService::ReportIdle(grpc::CallbackServerContext* context,
                                                       const v1::ReportIdleRequest* request,
                                                       v1::ReportIdleResponse*) {
  return Tell(context, *request, &Membership::ReportIdle);
}

grpc::ServerUnaryReactor* SchedulerService::ReportFailure(grpc::CallbackServerContext* context,
                                                          const v1::ReportFailureRequest* request,
                                                          v1::ReportFailureResponse*) {
  return Tell(context, *request, &Membership::ReportFailure);
}

grpc::ServerUnaryReactor* SchedulerService::ReportServerLost(
    grpc::CallbackServerContext* context, const v1::ReportServerLostRequest* request,
    v1::ReportServerLostResponse*) {
  return Tell(context, *request, &Membership::ReportServerLost);
}

grpc::ServerUnaryReactor* SchedulerService::AckChange(grpc::CallbackServerContext* context,
                                                      const v1::AckChangeRequest* request,
                                                      v1::AckChangeResponse*) {
  return Tell(context, *request, &Membership::AckChange);
}

grpc::ServerUnaryReactor* SchedulerService::NumberNode(grpc::CallbackServerContext* context,
                                                       const v1::NumberNodeRequest* request,
                                                       v1::NumberNodeResponse* response) {
  return Answer(context, *request, [&](Membership& membership, absl::Time now) {
    return Fill(membership.NumberNode(now, *request), response);
  });
}

// gRPC says when an answer has been sent, or cannot be any more.
class SchedulerService::StatusAnswer final : public grpc::ServerUnaryReactor {
 public:
  explicit StatusAnswer(std::atomic<int>* under_way) : under_way_(*under_way) {}

 private:
  void OnDone() override {
    --under_way_;
    delete this;
  }
  std::atomic<int>& under_way_;
};

grpc::ServerUnaryReactor* SchedulerService::AnswerStatus(absl::FunctionRef<absl::Status()> fill) {
  auto* const answer = new StatusAnswer(&status_answers_);
  const absl::Status status =
      ++status_answers_ > kMaxStatusAnswers
          ? absl::ResourceExhaustedError(absl::StrFormat(
                "%d answers with the scheduler's status have not been read yet: ask again later",
                kMaxStatusAnswers))
          : fill();
  if (!status.ok()) NoteRefusal(status);
  answer->Finish(ToGrpc(status));
  return answer;
}

grpc::ServerUnaryReactor* SchedulerService::GetStatus(grpc::CallbackServerContext*,
                                                      const v1::GetStatusRequest* request,
                                                      v1::GetStatusResponse* response) {
  return AnswerStatus([&] { return FillStatus(*request, response); });
}

absl::StatusOr<std::shared_ptr<const v1::GetNetworkResponse>> SchedulerService::Network() {
  return network_.Get([this] {
    const MutexLock lock(&mu_);
    return membership_.Network();
  });
}

grpc::ServerUnaryReactor* SchedulerService::GetNetwork(grpc::CallbackServerContext*,
                                                       const v1::GetNetworkRequest*,
                                                       v1::GetNetworkResponse* response) {
  return AnswerStatus([&] {
    const auto network = Network();
    if (network.ok()) *response = **network;
    return network.status();
  });
}

}  // namespace addend
