// The gRPC side of the scheduler: turns calls into events of Membership, stores and delivers its
// decisions, and keeps its time.
#pragma once

#include <prometheus/registry.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "lib/base/line_pace.h"
#include "lib/base/mutex.h"
#include "proto/addend/v1/scheduler.grpc.pb.h"
#include "services/scheduler/membership.h"
#include "services/scheduler/metrics.h"
#include "services/scheduler/network_cache.h"
#include "services/scheduler/store/store.h"
#include "services/scheduler/update_stream.h"

namespace addend {

// Every call runs on a thread of gRPC's and takes the mutex around membership, store and streams;
// no call waits for a member. Only the end of a stream does not wait for that mutex. A thread of
// its own ends leases. The changes of an event are stored before anybody is told; if that fails the
// service stops answering and asks the process to end, because the store still has the truth.
//
// Ends in this order: Shutdown, then the RpcServer that serves it, then this.
class SchedulerService final
    : public v1::Scheduler::WithRawCallbackMethod_WatchNode<v1::Scheduler::CallbackService> {
 public:
  struct Options {
    absl::Duration lease;
    bool react_to_stragglers = true;
    bool measure_network = true;
    NetworkPlaces network_places = {};
    absl::Duration token_lifetime = absl::Hours(1);
    std::string servers_digest = {};  // as Membership::Options
    std::unique_ptr<Store> store;
    prometheus::Registry* registry;  // must outlive the service
    // Called at most once, from any thread: the store has failed.
    std::function<void(absl::Status)> on_fatal;
  };

  // Reads the store. DATA_LOSS, and the store's own errors.
  static absl::StatusOr<std::unique_ptr<SchedulerService>> Create(Options options);
  ~SchedulerService() override;

  // A status is computed for all callers within so long, and no status is older than that.
  static constexpr absl::Duration kStatusInterval = absl::Milliseconds(100);
  // Answers of GetStatus that are made or on their way: a caller need not read its answer.
  static constexpr int kMaxStatusAnswers = 32;

  // All that GetStatus answers; also while calls are refused.
  v1::GetStatusResponse Status() ABSL_LOCKS_EXCLUDED(mu_);
  // The answer of GetStatus, without counting the answers that are on their way.
  absl::Status FillStatus(const v1::GetStatusRequest& request, v1::GetStatusResponse* response)
      ABSL_LOCKS_EXCLUDED(mu_);

  // The answer of GetNetwork, as NetworkCache has it.
  absl::StatusOr<std::shared_ptr<const v1::GetNetworkResponse>> Network() ABSL_LOCKS_EXCLUDED(mu_);

  // Ends the streams and refuses calls from now on, so that members look for a new scheduler.
  void Shutdown();

  grpc::ServerUnaryReactor* RegisterServer(grpc::CallbackServerContext* context,
                                           const v1::RegisterServerRequest* request,
                                           v1::RegisterServerResponse* response) override;
  grpc::ServerUnaryReactor* RegisterNode(grpc::CallbackServerContext* context,
                                         const v1::RegisterNodeRequest* request,
                                         v1::RegisterNodeResponse* response) override;
  grpc::ServerUnaryReactor* Heartbeat(grpc::CallbackServerContext* context,
                                      const v1::HeartbeatRequest* request,
                                      v1::HeartbeatResponse* response) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const v1::DrainRequest* request,
                                  v1::DrainResponse* response) override;
  grpc::ServerUnaryReactor* Leave(grpc::CallbackServerContext* context,
                                  const v1::LeaveRequest* request,
                                  v1::LeaveResponse* response) override;
  grpc::ServerWriteReactor<v1::ServerUpdate>* WatchServer(grpc::CallbackServerContext* context,
                                                          const v1::WatchRequest* request) override;
  // The messages are NodeUpdates. Most go to all nodes of a job, and are written down once for all.
  grpc::ServerWriteReactor<grpc::ByteBuffer>* WatchNode(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* request) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* OpenWatch(const v1::WatchRequest& request);
  grpc::ServerUnaryReactor* AckReservation(grpc::CallbackServerContext* context,
                                           const v1::AckReservationRequest* request,
                                           v1::AckReservationResponse* response) override;
  grpc::ServerUnaryReactor* Declare(grpc::CallbackServerContext* context,
                                    const v1::DeclareRequest* request,
                                    v1::DeclareResponse* response) override;
  grpc::ServerUnaryReactor* Undeclare(grpc::CallbackServerContext* context,
                                      const v1::UndeclareRequest* request,
                                      v1::UndeclareResponse* response) override;
  grpc::ServerUnaryReactor* ReportTrainers(grpc::CallbackServerContext* context,
                                           const v1::ReportTrainersRequest* request,
                                           v1::ReportTrainersResponse* response) override;
  grpc::ServerUnaryReactor* ReportIdle(grpc::CallbackServerContext* context,
                                       const v1::ReportIdleRequest* request,
                                       v1::ReportIdleResponse* response) override;
  grpc::ServerUnaryReactor* ReportFailure(grpc::CallbackServerContext* context,
                                          const v1::ReportFailureRequest* request,
                                          v1::ReportFailureResponse* response) override;
  grpc::ServerUnaryReactor* ReportServerLost(grpc::CallbackServerContext* context,
                                             const v1::ReportServerLostRequest* request,
                                             v1::ReportServerLostResponse* response) override;
  grpc::ServerUnaryReactor* AckChange(grpc::CallbackServerContext* context,
                                      const v1::AckChangeRequest* request,
                                      v1::AckChangeResponse* response) override;
  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::GetStatusRequest* request,
                                      v1::GetStatusResponse* response) override;
  grpc::ServerUnaryReactor* NumberNode(grpc::CallbackServerContext* context,
                                       const v1::NumberNodeRequest* request,
                                       v1::NumberNodeResponse* response) override;
  grpc::ServerUnaryReactor* GetNetwork(grpc::CallbackServerContext* context,
                                       const v1::GetNetworkRequest* request,
                                       v1::GetNetworkResponse* response) override;

 private:
  using Event = std::function<Outcome<absl::Status>(Membership&, absl::Time)>;
  using Streams = std::vector<std::shared_ptr<Pumpable>>;
  class StatusAnswer;

  explicit SchedulerService(Options options);
  absl::Status Load();
  void KeepTime();

  // An event, from the check of `request` (lib/rpc/request_bounds.h) to the decision's delivery.
  absl::Status Run(const google::protobuf::Message& request, const Event& event)
      ABSL_LOCKS_EXCLUDED(mu_, refusals_mu_);
  grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context,
                                   const google::protobuf::Message& request, const Event& event)
      ABSL_LOCKS_EXCLUDED(mu_, refusals_mu_);
  // An event that answers only whether it was taken.
  template <typename Request>
  grpc::ServerUnaryReactor* Tell(grpc::CallbackServerContext* context, const Request& request,
                                 Outcome<absl::Status> (Membership::*event)(absl::Time,
                                                                            const Request&));
  // Refused if too many such answers have not been read.
  grpc::ServerUnaryReactor* AnswerStatus(absl::FunctionRef<absl::Status()> fill);
  void NoteRefusal(const absl::Status& why) ABSL_LOCKS_EXCLUDED(refusals_mu_);
  void Say(const std::string& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status RunLocked(const Event& event, Streams* touched) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Deliver(const Decision& decision, Streams* touched) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void StreamDone(WatchId watch) ABSL_LOCKS_EXCLUDED(mu_, ended_mu_);
  void ForgetEndedStreams() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) ABSL_LOCKS_EXCLUDED(ended_mu_);
  WatchId NextWatch() ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<const v1::GetStatusResponse> RecentStatus() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::function<void(absl::Status)> on_fatal_;
  SchedulerMetrics metrics_;

  Mutex mu_;
  CondVar stopping_;
  const std::unique_ptr<Store> store_ ABSL_PT_GUARDED_BY(mu_);
  Membership membership_ ABSL_GUARDED_BY(mu_);
  std::map<WatchId, std::shared_ptr<UpdateStream<v1::ServerUpdate>>> server_streams_
      ABSL_GUARDED_BY(mu_);
  std::map<WatchId, std::shared_ptr<UpdateStream<grpc::ByteBuffer>>> node_streams_
      ABSL_GUARDED_BY(mu_);
  WatchId next_watch_ ABSL_GUARDED_BY(mu_) = 1;
  LinePace reasons_ ABSL_GUARDED_BY(mu_);
  absl::Status closed_ ABSL_GUARDED_BY(mu_);  // not OK: no more events
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time next_look_ ABSL_GUARDED_BY(mu_) =
      absl::InfinitePast();  // of KeepTime, if nothing wakes it
  bool look_now_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<const v1::GetStatusResponse> status_ ABSL_GUARDED_BY(mu_);  // of all jobs
  absl::Time status_at_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();

  Mutex refusals_mu_;
  LinePace refusals_ ABSL_GUARDED_BY(refusals_mu_);

  // Streams that gRPC has ended and membership does not know of yet.
  Mutex ended_mu_ ABSL_ACQUIRED_AFTER(mu_);
  std::vector<WatchId> ended_ ABSL_GUARDED_BY(ended_mu_);
  std::atomic<bool> any_ended_{false};

  std::atomic<int> status_answers_{0};
  NetworkCache network_;

  std::thread timekeeper_;  // started last
};

}  // namespace addend
