#include "services/scheduler/scheduler_service.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/auth/secret.h"
#include "lib/base/log.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/base/version.h"
#include "lib/rpc/status.h"

namespace addend {
namespace {

constexpr absl::Duration kMetricsInterval = absl::Seconds(1);

// Wall-clock time that never jumps: a clock that is set must not end leases.
absl::Time Now() {
  static const absl::Time start = absl::Now();
  static const auto steady_start = std::chrono::steady_clock::now();
  return start + absl::FromChrono(std::chrono::steady_clock::now() - steady_start);
}

Membership::Options MembershipOptions(const SchedulerService::Options& options,
                                      const Store& store) {
  return {.lease = options.lease,
          .react_to_stragglers = options.react_to_stragglers,
          .version = std::string(Version()),
          .store = store.Describe(),
          .make_key = [] { return std::string(auth::TextOf(auth::NewSecret())); },
          .token_lifetime = options.token_lifetime,
          .servers_digest = options.servers_digest};
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
      membership_(MembershipOptions(options, *store_), Now()) {}

SchedulerService::~SchedulerService() {
  Shutdown();
  if (timekeeper_.joinable()) timekeeper_.join();
}

absl::Status SchedulerService::Load() {
  MutexLock lock(&mu_);
  ADDEND_ASSIGN_OR_RETURN(const std::vector<StoreEntry> entries, store_->Load());
  ADDEND_RETURN_IF_ERROR(membership_.Restore(Now(), entries));
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
  MutexLock lock(&mu_);
  return membership_.GetStatus(Now(), {});
}

void SchedulerService::KeepTime() {
  absl::Time next_metrics = Now();
  while (true) {
    absl::Time wake;
    Streams touched;
    {
      MutexLock lock(&mu_);
      if (stop_) return;
      wake = Now() + kMetricsInterval;
      RunLocked(
          [&wake](Membership& membership, absl::Time now, Decision* decision) {
            wake = membership.Tick(now, decision);
            return absl::OkStatus();
          },
          &touched)
          .IgnoreError();  // RunLocked has told on_fatal_
      if (Now() >= next_metrics) {
        metrics_.Update(membership_.Summary(), server_streams_.size() + node_streams_.size());
        next_metrics = Now() + kMetricsInterval;
      }
    }
    for (const auto& stream : touched) stream->Pump();
    // Not more often than this, however many leases end at about the same time.
    const absl::Duration pause =
        std::clamp(wake - Now(), absl::Milliseconds(20), absl::Milliseconds(500));
    const auto until = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(pause);
    MutexLock lock(&mu_);
    while (!stop_ && !any_ended_ && stopping_.WaitUntil(&mu_, until)) {
    }
    if (stop_) return;
  }
}

absl::Status SchedulerService::Run(const Event& event) {
  Streams touched;
  absl::Status status;
  {
    MutexLock lock(&mu_);
    status = RunLocked(event, &touched);
  }
  for (const auto& stream : touched) stream->Pump();
  if (!status.ok()) {
    metrics_.Refused();
    if (absl::IsNotFound(status)) {
      spdlog::debug("{}", Message(status));
    } else {
      spdlog::warn("refused: {}", Message(status));
    }
  }
  return status;
}

absl::Status SchedulerService::RunLocked(const Event& event, Streams* touched) {
  if (!closed_.ok()) return closed_;
  ForgetEndedStreams();
  Decision decision;
  const absl::Time start = Now();
  const absl::Status status = event(membership_, start, &decision);
  if (decision.planned > 0) metrics_.Planned(decision.planned, Now() - start);
  if (absl::Status stored = StoreDecision(decision); !stored.ok()) {
    closed_ = absl::UnavailableError(Message(stored));
    on_fatal_(std::move(stored));
    return closed_;
  }
  for (const std::string& reason : decision.reasons) spdlog::info("{}", reason);
  Deliver(decision, touched);
  return status;
}

absl::Status SchedulerService::StoreDecision(const Decision& decision) {
  if (decision.writes.empty()) return absl::OkStatus();
  const absl::Time start = Now();
  ADDEND_RETURN_IF_ERROR(store_->Apply(decision.writes));
  metrics_.Stored(Now() - start);
  return absl::OkStatus();
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
  for (const NodeSend& send : decision.to_nodes) {
    const auto found = node_streams_.find(send.watch);
    if (found == node_streams_.end()) continue;
    found->second->Push(send.update);
    touched->push_back(found->second);
  }
}

// Never waits for mu_: this is a thread of gRPC's on which the store's own calls may depend, and
// whoever has mu_ may be in such a call.
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
    membership_.WatchBroke(Now(), watch);
    server_streams_.erase(watch);
    node_streams_.erase(watch);
  }
}

WatchId SchedulerService::NextWatch() {
  MutexLock lock(&mu_);
  return next_watch_++;
}

grpc::ServerUnaryReactor* SchedulerService::Answer(grpc::CallbackServerContext* context,
                                                   const Event& event) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(Run(event)));
  return reactor;
}

grpc::ServerWriteReactor<v1::ServerUpdate>* SchedulerService::WatchServer(
    grpc::CallbackServerContext*, const v1::WatchRequest* request) {
  const WatchId watch = NextWatch();
  const auto stream = UpdateStream<v1::ServerUpdate>::Create([this, watch] { StreamDone(watch); });
  {
    MutexLock lock(&mu_);
    server_streams_[watch] = stream;
  }
  const absl::Status status = Run([&](Membership& membership, absl::Time now, Decision* decision) {
    return membership.WatchServer(now, request->member(), watch, decision);
  });
  if (!status.ok()) {
    stream->End(ToGrpc(status));
    stream->Pump();
  }
  return stream.get();
}

grpc::ServerWriteReactor<v1::NodeUpdate>* SchedulerService::WatchNode(
    grpc::CallbackServerContext*, const v1::WatchRequest* request) {
  const WatchId watch = NextWatch();
  const auto stream = UpdateStream<v1::NodeUpdate>::Create([this, watch] { StreamDone(watch); });
  {
    MutexLock lock(&mu_);
    node_streams_[watch] = stream;
  }
  const absl::Status status = Run([&](Membership& membership, absl::Time now, Decision* decision) {
    return membership.WatchNode(now, request->member(), watch, decision);
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
  return Answer(
      context, [&](Membership& membership, absl::Time now, Decision* decision) -> absl::Status {
        ADDEND_ASSIGN_OR_RETURN(*response, membership.RegisterServer(now, *request, decision));
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* SchedulerService::RegisterNode(grpc::CallbackServerContext* context,
                                                         const v1::RegisterNodeRequest* request,
                                                         v1::RegisterNodeResponse* response) {
  return Answer(
      context, [&](Membership& membership, absl::Time now, Decision* decision) -> absl::Status {
        ADDEND_ASSIGN_OR_RETURN(*response, membership.RegisterNode(now, *request, decision));
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* SchedulerService::Heartbeat(grpc::CallbackServerContext* context,
                                                      const v1::HeartbeatRequest* request,
                                                      v1::HeartbeatResponse*) {
  return Answer(context, [&](Membership& membership, absl::Time now, Decision* decision) {
    return membership.Heartbeat(now, *request, decision);
  });
}

grpc::ServerUnaryReactor* SchedulerService::Drain(grpc::CallbackServerContext* context,
                                                  const v1::DrainRequest* request,
                                                  v1::DrainResponse*) {
  return Answer(context, [&](Membership& membership, absl::Time now, Decision* decision) {
    return membership.Drain(now, *request, decision);
  });
}

grpc::ServerUnaryReactor* SchedulerService::Leave(grpc::CallbackServerContext* context,
                                                  const v1::LeaveRequest* request,
                                                  v1::LeaveResponse*) {
  return Answer(context, [&](Membership& membership, absl::Time now, Decision* decision) {
    return membership.Leave(now, request->member(), decision);
  });
}

grpc::ServerUnaryReactor* SchedulerService::AckReservation(grpc::CallbackServerContext* context,
                                                           const v1::AckReservationRequest* request,
                                                           v1::AckReservationResponse*) {
  return Answer(context, [&](Membership& membership, absl::Time now, Decision* decision) {
    return membership.AckReservation(now, *request, decision);
  });
}

grpc::ServerUnaryReactor* SchedulerService::Declare(grpc::CallbackServerContext* context,
                                                    const v1::DeclareRequest* request,
                                                    v1::DeclareResponse*) {
  return Answer(context, [&](Membership& membership, absl::Time now, Decision* decision) {
    return membership.Declare(now, *request, decision);
  });
}

grpc::ServerUnaryReactor* SchedulerService::Undeclare(grpc::CallbackServerContext* context,
                                                      const v1::UndeclareRequest* request,
                                                      v1::UndeclareResponse*) {
  return Answer(context, [&](Membership& membership, absl::Time now, Decision* decision) {
    return membership.Undeclare(now, *request, decision);
  });
}

grpc::ServerUnaryReactor* SchedulerService::ReportTrainers(grpc::CallbackServerContext* context,
                                                           const v1::ReportTrainersRequest* request,
                                                           v1::ReportTrainersResponse*) {
  return Answer(context, [&](Membership& membership, absl::Time now, Decision* decision) {
    return membership.ReportTrainers(now, *request, decision);
  });
}

grpc::ServerUnaryReactor* SchedulerService::ReportIdle(grpc::CallbackServerContext* context,
                                                       const v1::ReportIdleRequest* request,
                                                       v1::ReportIdleResponse*) {
  return Answer(context, [&](Membership& membership, absl::Time now, Decision* decision) {
    return membership.ReportIdle(now, *request, decision);
  });
}

grpc::ServerUnaryReactor* SchedulerService::ReportFailure(grpc::CallbackServerContext* context,
                                                          const v1::ReportFailureRequest* request,
                                                          v1::ReportFailureResponse*) {
  return Answer(context, [&](Membership& membership, absl::Time now, Decision* decision) {
    return membership.ReportFailure(now, *request, decision);
  });
}

grpc::ServerUnaryReactor* SchedulerService::ReportServerLost(
    grpc::CallbackServerContext* context, const v1::ReportServerLostRequest* request,
    v1::ReportServerLostResponse*) {
  return Answer(context, [&](Membership& membership, absl::Time now, Decision* decision) {
    return membership.ReportServerLost(now, *request, decision);
  });
}

grpc::ServerUnaryReactor* SchedulerService::AckChange(grpc::CallbackServerContext* context,
                                                      const v1::AckChangeRequest* request,
                                                      v1::AckChangeResponse*) {
  return Answer(context, [&](Membership& membership, absl::Time now, Decision* decision) {
    return membership.AckChange(now, *request, decision);
  });
}

grpc::ServerUnaryReactor* SchedulerService::GetStatus(grpc::CallbackServerContext* context,
                                                      const v1::GetStatusRequest* request,
                                                      v1::GetStatusResponse* response) {
  return Answer(context, [&](Membership& membership, absl::Time now, Decision*) {
    *response = membership.GetStatus(now, *request);
    return absl::OkStatus();
  });
}

}  // namespace addend
