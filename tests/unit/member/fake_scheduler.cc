#include "tests/unit/member/fake_scheduler.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"
#include "lib/rpc/request_bounds.h"
#include "lib/rpc/status.h"

namespace addend {
namespace {

constexpr std::chrono::seconds kPatience(10);
// How often an open watch looks whether its client has gone.
constexpr std::chrono::milliseconds kGlance(20);

}  // namespace

void FakeScheduler::Start() {
  auto server = RpcServer::Start({.listen = {"127.0.0.1", port_},
                                  .max_request_bytes = kMaxRequestBytes,
                                  .max_answer_bytes = kMaxUpdateBytes},
                                 {this});
  ADDEND_CHECK(server.ok(), "the loopback has a free port");
  server_ = *std::move(server);
  // Written once: later a member may be asking for the address from another thread.
  if (port_ == 0) port_ = server_->port();
}

void FakeScheduler::Stop() {
  BreakWatches(absl::UnavailableError("stopped"));
  server_.reset();
}

std::string FakeScheduler::address() const { return absl::StrFormat("127.0.0.1:%d", port_); }

void FakeScheduler::Answer(const std::string& method, absl::Status status) {
  MutexLock lock(&mu_);
  answers_[method] = std::move(status);
}

void FakeScheduler::AnswerOnce(const std::string& method, absl::Status status) {
  MutexLock lock(&mu_);
  answers_once_[method].push_back(std::move(status));
}

void FakeScheduler::SetLease(double seconds) {
  MutexLock lock(&mu_);
  lease_s_ = seconds;
}

void FakeScheduler::SetTakesColocated(bool takes) {
  MutexLock lock(&mu_);
  takes_colocated_ = takes;
}

void FakeScheduler::SetServerId(uint32_t server_id) {
  MutexLock lock(&mu_);
  server_id_ = server_id;
}

void FakeScheduler::SetJobId(uint64_t job_id) {
  MutexLock lock(&mu_);
  job_id_ = job_id;
}

void FakeScheduler::Push(const v1::ServerUpdate& update) {
  MutexLock lock(&mu_);
  server_updates_.push_back(update);
  changed_.NotifyAll();
}

void FakeScheduler::Push(const v1::NodeUpdate& update) {
  MutexLock lock(&mu_);
  node_updates_.push_back(update);
  changed_.NotifyAll();
}

void FakeScheduler::BreakWatches(absl::Status status) {
  MutexLock lock(&mu_);
  ++breaks_;
  break_status_ = std::move(status);
  changed_.NotifyAll();
}

bool FakeScheduler::WaitUntil(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  MutexLock lock(&mu_);
  while (!condition()) {
    if (!changed_.WaitUntil(&mu_, deadline)) return condition();
  }
  return true;
}

bool FakeScheduler::WaitForCalls(const std::string& method, int count) {
  return WaitUntil([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return calls_[method] >= count; });
}

bool FakeScheduler::WaitForReports(size_t count) {
  return WaitUntil([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return reports_.size() >= count; });
}

int FakeScheduler::calls(const std::string& method) {
  MutexLock lock(&mu_);
  return calls_[method];
}

std::vector<std::string> FakeScheduler::reports() {
  MutexLock lock(&mu_);
  return reports_;
}

v1::HeartbeatRequest FakeScheduler::last_heartbeat() {
  const auto all = heartbeats();
  return all.empty() ? v1::HeartbeatRequest() : all.back();
}

std::vector<v1::HeartbeatRequest> FakeScheduler::heartbeats() {
  MutexLock lock(&mu_);
  return heartbeats_;
}

v1::AckReservationRequest FakeScheduler::last_ack() {
  MutexLock lock(&mu_);
  return last_ack_;
}

v1::MemberId FakeScheduler::left() {
  MutexLock lock(&mu_);
  return left_;
}

uint64_t FakeScheduler::last_incarnation() {
  MutexLock lock(&mu_);
  return last_incarnation_;
}

absl::Status FakeScheduler::Count(const std::string& method) {
  MutexLock lock(&mu_);
  ++calls_[method];
  changed_.NotifyAll();
  auto& once = answers_once_[method];
  if (once.empty()) return answers_[method];
  absl::Status status = std::move(once.front());
  once.pop_front();
  return status;
}

grpc::Status FakeScheduler::RegisterServer(grpc::ServerContext*,
                                           const v1::RegisterServerRequest* request,
                                           v1::RegisterServerResponse* response) {
  const absl::Status status = Count("RegisterServer");
  MutexLock lock(&mu_);
  last_incarnation_ = request->incarnation();
  response->set_server_id(server_id_);
  response->set_lease_s(lease_s_);
  return ToGrpc(status);
}

grpc::Status FakeScheduler::RegisterNode(grpc::ServerContext*,
                                         const v1::RegisterNodeRequest* request,
                                         v1::RegisterNodeResponse* response) {
  const absl::Status status = Count("RegisterNode");
  MutexLock lock(&mu_);
  last_incarnation_ = request->incarnation();
  response->set_job_id(job_id_);
  response->set_generation(1);
  response->mutable_token()->set_secret("token");
  response->set_lease_s(lease_s_);
  return ToGrpc(status);
}

grpc::Status FakeScheduler::Heartbeat(grpc::ServerContext*, const v1::HeartbeatRequest* request,
                                      v1::HeartbeatResponse* response) {
  {
    MutexLock lock(&mu_);
    heartbeats_.push_back(*request);
    response->set_took_colocated(request->has_colocated() && takes_colocated_);
  }
  return ToGrpc(Count("Heartbeat"));
}

grpc::Status FakeScheduler::Leave(grpc::ServerContext*, const v1::LeaveRequest* request,
                                  v1::LeaveResponse*) {
  {
    MutexLock lock(&mu_);
    left_ = request->member();
  }
  return ToGrpc(Count("Leave"));
}

template <typename Update>
grpc::Status FakeScheduler::Watch(const std::string& method, grpc::ServerContext* context,
                                  grpc::ServerWriter<Update>* writer,
                                  const std::vector<Update>& updates) {
  mu_.Lock();
  const int breaks = breaks_;  // read before the call counts: a test that has seen it counted can
                               // break it
  mu_.Unlock();
  const absl::Status answer = Count(method);
  if (!answer.ok()) return ToGrpc(answer);
  size_t sent = 0;
  mu_.Lock();
  while (breaks_ == breaks && !context->IsCancelled()) {
    if (sent < updates.size()) {
      const Update update = updates[sent++];
      mu_.Unlock();
      writer->Write(update);
      mu_.Lock();
    } else {
      changed_.WaitUntil(&mu_, std::chrono::steady_clock::now() + kGlance);
    }
  }
  const absl::Status status = break_status_;
  mu_.Unlock();
  return ToGrpc(status);
}

grpc::Status FakeScheduler::WatchServer(grpc::ServerContext* context, const v1::WatchRequest*,
                                        grpc::ServerWriter<v1::ServerUpdate>* writer) {
  return Watch("WatchServer", context, writer, server_updates_);
}

grpc::Status FakeScheduler::WatchNode(grpc::ServerContext* context, const v1::WatchRequest*,
                                      grpc::ServerWriter<v1::NodeUpdate>* writer) {
  return Watch("WatchNode", context, writer, node_updates_);
}

grpc::Status FakeScheduler::AckReservation(grpc::ServerContext*,
                                           const v1::AckReservationRequest* request,
                                           v1::AckReservationResponse*) {
  {
    MutexLock lock(&mu_);
    last_ack_ = *request;
  }
  return ToGrpc(Count("AckReservation"));
}

grpc::Status FakeScheduler::TakeReport(const std::string& method, std::string report) {
  const absl::Status status = Count(method);
  if (status.ok()) {
    MutexLock lock(&mu_);
    reports_.push_back(method + report);
    changed_.NotifyAll();
  }
  return ToGrpc(status);
}

grpc::Status FakeScheduler::Declare(grpc::ServerContext*, const v1::DeclareRequest* request,
                                    v1::DeclareResponse*) {
  std::string report;
  for (const auto& tensor : request->tensors()) report += " " + tensor.name();
  return TakeReport("Declare", report);
}

grpc::Status FakeScheduler::Undeclare(grpc::ServerContext*, const v1::UndeclareRequest* request,
                                      v1::UndeclareResponse*) {
  std::string report;
  for (const auto& name : request->names()) report += " " + name;
  return TakeReport("Undeclare", report);
}

grpc::Status FakeScheduler::ReportTrainers(grpc::ServerContext*,
                                           const v1::ReportTrainersRequest* request,
                                           v1::ReportTrainersResponse*) {
  return TakeReport("ReportTrainers", absl::StrFormat(" %d", request->initialised()));
}

grpc::Status FakeScheduler::ReportIdle(grpc::ServerContext*, const v1::ReportIdleRequest*,
                                       v1::ReportIdleResponse*) {
  return TakeReport("ReportIdle", "");
}

grpc::Status FakeScheduler::ReportFailure(grpc::ServerContext*,
                                          const v1::ReportFailureRequest* request,
                                          v1::ReportFailureResponse*) {
  return TakeReport("ReportFailure", absl::StrFormat(" %s %s %d", request->reason(),
                                                     request->kind(), request->exit_code()));
}

}  // namespace addend
