// A scheduler that a test controls, and that records its calls.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "lib/base/mutex.h"
#include "lib/member/member.h"
#include "lib/rpc/server.h"
#include "proto/addend/v1/scheduler.grpc.pb.h"

namespace addend {

// Listens on the same port of the loopback after every Start. All methods may be called from any
// thread.
class FakeScheduler : public v1::Scheduler::Service {
 public:
  FakeScheduler() { Start(); }
  ~FakeScheduler() override { Stop(); }

  void Start();
  void Stop();
  std::string address() const;

  // Sets the answer of a method; OK unless set.
  void Answer(const std::string& method, absl::Status status);
  // The next answers of a method, before that of Answer.
  void AnswerOnce(const std::string& method, absl::Status status);
  void SetLease(double seconds);
  // Whether it knows heartbeats that carry that of a colocated server.
  void SetTakesColocated(bool takes);
  void SetServerId(uint32_t server_id);
  void SetJobId(uint64_t job_id);

  // Send an update to every open watch.
  void Push(const v1::ServerUpdate& update);
  void Push(const v1::NodeUpdate& update);
  // Ends all open watches with this status.
  void BreakWatches(absl::Status status);

  // Waits until `method` has been called that often, at most 10 s; false if it was not.
  bool WaitForCalls(const std::string& method, int count);
  int calls(const std::string& method);
  // The nodes' reports that were answered with OK: "Declare a b", "Undeclare c", "ReportTrainers
  // 2", "ReportIdle", "ReportFailure reason kind exit_code".
  std::vector<std::string> reports();
  bool WaitForReports(size_t count);
  v1::HeartbeatRequest last_heartbeat();
  std::vector<v1::HeartbeatRequest> heartbeats();
  v1::AckReservationRequest last_ack();
  v1::MemberId left();
  uint64_t last_incarnation();

  grpc::Status RegisterServer(grpc::ServerContext*, const v1::RegisterServerRequest*,
                              v1::RegisterServerResponse*) override;
  grpc::Status RegisterNode(grpc::ServerContext*, const v1::RegisterNodeRequest*,
                            v1::RegisterNodeResponse*) override;
  grpc::Status Heartbeat(grpc::ServerContext*, const v1::HeartbeatRequest*,
                         v1::HeartbeatResponse*) override;
  grpc::Status Leave(grpc::ServerContext*, const v1::LeaveRequest*, v1::LeaveResponse*) override;
  grpc::Status WatchServer(grpc::ServerContext*, const v1::WatchRequest*,
                           grpc::ServerWriter<v1::ServerUpdate>*) override;
  grpc::Status WatchNode(grpc::ServerContext*, const v1::WatchRequest*,
                         grpc::ServerWriter<v1::NodeUpdate>*) override;
  grpc::Status AckReservation(grpc::ServerContext*, const v1::AckReservationRequest*,
                              v1::AckReservationResponse*) override;
  grpc::Status Declare(grpc::ServerContext*, const v1::DeclareRequest*,
                       v1::DeclareResponse*) override;
  grpc::Status Undeclare(grpc::ServerContext*, const v1::UndeclareRequest*,
                         v1::UndeclareResponse*) override;
  grpc::Status ReportTrainers(grpc::ServerContext*, const v1::ReportTrainersRequest*,
                              v1::ReportTrainersResponse*) override;
  grpc::Status ReportIdle(grpc::ServerContext*, const v1::ReportIdleRequest*,
                          v1::ReportIdleResponse*) override;
  grpc::Status ReportFailure(grpc::ServerContext*, const v1::ReportFailureRequest*,
                             v1::ReportFailureResponse*) override;

 private:
  // Counts the call and gives its answer.
  absl::Status Count(const std::string& method);
  grpc::Status TakeReport(const std::string& method, std::string report);
  bool WaitUntil(const std::function<bool()>& condition);
  template <typename Update>
  grpc::Status Watch(const std::string& method, grpc::ServerContext* context,
                     grpc::ServerWriter<Update>* writer, const std::vector<Update>& updates);

  std::unique_ptr<RpcServer> server_;
  uint16_t port_ = 0;

  Mutex mu_;
  CondVar changed_;
  std::map<std::string, int> calls_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, absl::Status> answers_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::deque<absl::Status>> answers_once_ ABSL_GUARDED_BY(mu_);
  double lease_s_ ABSL_GUARDED_BY(mu_) = 0.3;
  bool takes_colocated_ ABSL_GUARDED_BY(mu_) = true;
  uint32_t server_id_ ABSL_GUARDED_BY(mu_) = 5;
  uint64_t job_id_ ABSL_GUARDED_BY(mu_) = 9;
  std::vector<v1::ServerUpdate> server_updates_;  // guarded by mu_; handed to Watch by reference
  std::vector<v1::NodeUpdate> node_updates_;
  int breaks_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status break_status_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> reports_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::HeartbeatRequest> heartbeats_ ABSL_GUARDED_BY(mu_);
  v1::AckReservationRequest last_ack_ ABSL_GUARDED_BY(mu_);
  v1::MemberId left_ ABSL_GUARDED_BY(mu_);
  uint64_t last_incarnation_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace addend
