// All calls of members and strangers, in any order: every handler of a real scheduler, those of a
// summation server, and the scheduler's updates to that server. Every call is answered, the server
// stays below its memory limit and frees all of it, and the scheduler's status can be formatted.
#include <grpcpp/test/default_reactor_test_peer.h>
#include <prometheus/registry.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lib/server/summation_member.h"
#include "lib/server/summation_service.h"
#include "lib/status/network_json.h"
#include "lib/status/status_json.h"
#include "services/scheduler/scheduler_service.h"
#include "services/scheduler/store/memory_store.h"
#include "tests/fuzz/calls.h"
#include "tests/fuzz/check.h"
#include "tests/fuzz/fuzz_input.pb.h"
#include "tests/fuzz/message_target.h"
#include "tests/fuzz/streams.h"

namespace addend::fuzz {
namespace {

using google::protobuf::Message;

constexpr uint64_t kMemoryLimit = 1 << 20;
// The memory of partitions beside their accumulators grows with the nodes, and is not limited.
constexpr uint32_t kNodesMost = 64;
constexpr uint64_t kJobsMost = 1000;  // of an input

Engine* TheEngine() {
  // Destroyed by exit(), before older objects: its threads write to the log of start.cc.
  static const std::unique_ptr<Engine> engine = *Engine::Create({.shards = 2,
                                                                 .memory_limit_bytes = kMemoryLimit,
                                                                 .incarnation = Incarnation(1),
                                                                 .send_limits = {},
                                                                 .network = nullptr,
                                                                 .external_slots = nullptr});
  return engine.get();
}

class Cluster {
 public:
  Cluster() {
    auto service = SchedulerService::Create(
        {.lease = absl::Seconds(5),
         .store = std::make_unique<MemoryStore>(),
         .registry = &registry_,
         .on_fatal = [](absl::Status) { FUZZ_CHECK(false, "a store in memory never fails"); }});
    scheduler_ = *std::move(service);
  }
  // Streams end before their service.
  ~Cluster() {
    scheduler_->Shutdown();
    servers_.clear();
    nodes_.clear();
    if (!engine_used_) return;
    TheEngine()->RetainOnly({});
    FUZZ_CHECK(TheEngine()->stats().memory_used_bytes == 0, "all memory has been given back");
  }

  void Take(const v1::Call& call);
  void Show() { FUZZ_CHECK(!StatusJson(scheduler_->Status()).empty(), "people can read it"); }

 private:
  template <typename Request, typename Response>
  Response Tell(grpc::ServerUnaryReactor* (SchedulerService::*handler)(grpc::CallbackServerContext*,
                                                                       const Request*, Response*),
                const Request& request) {
    grpc::CallbackServerContext context;
    grpc::testing::DefaultReactorTestPeer peer(&context);
    Response response;
    (scheduler_.get()->*handler)(&context, &request, &response);
    FUZZ_CHECK(peer.test_status_set(), "every call is answered");
    return response;
  }
  void RegisterNode(const v1::RegisterNodeRequest& request) {
    const auto response = Tell(&SchedulerService::RegisterNode, OfThisVersion(request));
    if (first_job_ == 0) first_job_ = response.job_id();
  }
  // An input counts the jobs from 1 on, and the scheduler from a number that the clock gives it.
  template <typename Request>
  Request OfMember(const Request& request) const {
    Request own = ByItself(request);
    const uint64_t job = own.member().job_id();
    if (job > 0 && job < kJobsMost) own.mutable_member()->set_job_id(first_job_ + job - 1);
    return own;
  }
  // Calls without the reactor that counts the answers, which only gRPC ends.
  void AskStatus(const v1::GetStatusRequest& request) {
    v1::GetStatusResponse response;
    scheduler_->FillStatus(request, &response).IgnoreError();
  }
  void NumberNode(v1::NumberNodeRequest request) {
    *request.mutable_node() = OfThisVersion(request.node());
    Tell(&SchedulerService::NumberNode, request);
  }
  // Lets the members carry out their updates.
  void Follow();
  v1::AckReservationRequest Update(v1::ServerUpdate update);
  void Ask(const v1::RollCallRequest& request);
  void Converse(const v1::LinkSignal& signal);

  prometheus::Registry registry_;
  std::unique_ptr<SchedulerService> scheduler_;
  grpc::CallbackServerContext context_;
  std::vector<std::pair<v1::MemberId, std::unique_ptr<Watch<v1::ServerUpdate>>>> servers_;
  std::vector<std::pair<v1::MemberId, std::unique_ptr<Watch<grpc::ByteBuffer>>>> nodes_;
  std::set<std::pair<const void*, uint32_t>> reported_;  // by stream and generation
  uint64_t first_job_ = 0;
  bool engine_used_ = false;
};

v1::AckReservationRequest Cluster::Update(v1::ServerUpdate update) {
  engine_used_ = true;
  for (v1::JobReservation& job : *update.mutable_jobs()) {
    if (job.num_nodes() > kNodesMost) job.set_num_nodes(job.num_nodes() % kNodesMost);
  }
  const v1::AckReservationRequest ack = CarryOut(update, TheEngine());
  FUZZ_CHECK(TheEngine()->stats().memory_used_bytes <= kMemoryLimit,
             "memory stays below its limit");
  return ack;
}

void Cluster::Ask(const v1::RollCallRequest& request) {
  engine_used_ = true;
  v1::RollCallResponse response;
  SummationService service(TheEngine());
  FUZZ_CHECK(service.GetRollCall(nullptr, &request, &response).ok(), "it is answered");
}

void Cluster::Converse(const v1::LinkSignal& signal) {
  engine_used_ = true;
  SummationService service(TheEngine());
  grpc::CallbackServerContext context;
  Conversation<v1::LinkSignal> conversation(service.Converse(&context));
  conversation.Say(signal);
  TheEngine()->RollCall(JobId(1), 1);  // when this returns, the shard has finished the call
  FUZZ_CHECK(conversation.Hear() == 2, "a challenge, and to everybody why there is no link");
}

void Cluster::Follow() {
  for (auto& [member, watch] : servers_) {
    for (v1::ServerUpdate& update : watch->Read()) {
      const uint64_t id = update.update_id();
      v1::AckReservationRequest ack = Update(std::move(update));
      *ack.mutable_member() = member;
      ack.set_update_id(id);
      Tell(&SchedulerService::AckReservation, ack);
    }
  }
  for (auto& [member, watch] : nodes_) {
    for (grpc::ByteBuffer& bytes : watch->Read()) {
      v1::NodeUpdate update;
      FUZZ_CHECK(grpc::SerializationTraits<v1::NodeUpdate>::Deserialize(&bytes, &update).ok(),
                 "nodes can read it");
      v1::ReportTrainersRequest trainers;
      *trainers.mutable_member() = member;
      trainers.set_generation(update.generation());
      trainers.set_initialised(1);
      // Only once, because the whole job is told of each report.
      if (update.state() == v1::FORMING &&
          reported_.emplace(watch.get(), update.generation()).second) {
        Tell(&SchedulerService::ReportTrainers, trainers);
      }
      if (update.change() == 0) continue;
      v1::AckChangeRequest ack;
      *ack.mutable_member() = member;
      ack.set_generation(update.generation());
      ack.set_change(update.change());
      Tell(&SchedulerService::AckChange, ack);
      ack.set_following(true);
      Tell(&SchedulerService::AckChange, ack);
    }
  }
}

void Cluster::Take(const v1::Call& call) {
  using S = SchedulerService;
  v1::WatchRequest request;
  switch (call.what_case()) {
    case v1::Call::kRegisterServer:
      Tell(&S::RegisterServer, OfThisVersion(call.register_server()));
      return;
    case v1::Call::kRegisterNode:
      return RegisterNode(call.register_node());
    case v1::Call::kHeartbeat:
      Tell(&S::Heartbeat, OfMember(call.heartbeat()));
      return;
    case v1::Call::kLeave:
      Tell(&S::Leave, OfMember(call.leave()));
      return;
    case v1::Call::kDrain:
      Tell(&S::Drain, call.drain());
      return;
    case v1::Call::kWatchServer:
      request = OfMember(call.watch_server());
      servers_.emplace_back(request.member(), std::make_unique<Watch<v1::ServerUpdate>>(
                                                  scheduler_->WatchServer(&context_, &request)));
      return;
    case v1::Call::kWatchNode:
      request = OfMember(call.watch_node());
      nodes_.emplace_back(request.member(), std::make_unique<Watch<grpc::ByteBuffer>>(
                                                scheduler_->OpenWatch(request)));
      return;
    case v1::Call::kAckReservation:
      Tell(&S::AckReservation, OfMember(call.ack_reservation()));
      return;
    case v1::Call::kDeclare:
      Tell(&S::Declare, OfMember(call.declare()));
      return;
    case v1::Call::kUndeclare:
      Tell(&S::Undeclare, OfMember(call.undeclare()));
      return;
    case v1::Call::kReportTrainers:
      Tell(&S::ReportTrainers, OfMember(call.report_trainers()));
      return;
    case v1::Call::kReportIdle:
      Tell(&S::ReportIdle, OfMember(call.report_idle()));
      return;
    case v1::Call::kReportFailure:
      Tell(&S::ReportFailure, OfMember(call.report_failure()));
      return;
    case v1::Call::kReportServerLost:
      Tell(&S::ReportServerLost, OfMember(call.report_server_lost()));
      return;
    case v1::Call::kAckChange:
      Tell(&S::AckChange, OfMember(call.ack_change()));
      return;
    case v1::Call::kGetStatus:
      return AskStatus(call.get_status());
    case v1::Call::kNumberNode:
      return NumberNode(call.number_node());
    case v1::Call::kGetNetwork:
      FUZZ_CHECK(!NetworkJson(**scheduler_->Network()).empty(), "people can read it");
      return;
    case v1::Call::kPassS:  // the oldest member's stream breaks
      if (!nodes_.empty()) nodes_.erase(nodes_.begin());
      return;
    case v1::Call::kFollow:
      return Follow();
    case v1::Call::kServerUpdate:
      Update(call.server_update());
      return;
    case v1::Call::kRollCall:
      return Ask(call.roll_call());
    case v1::Call::kTrace:
      TheEngine()->Trace(JobId(call.trace().job_id()), call.trace().rounds());
      TheEngine()->TensorNames(JobId(call.trace().job_id()));
      return;
    case v1::Call::kConverse:
      return Converse(call.converse());
    case v1::Call::WHAT_NOT_SET:
      return;
  }
}

}  // namespace

std::unique_ptr<Message> NewInput() { return std::make_unique<v1::HandlersInput>(); }

void TakeInput(const Message& message) {
  Cluster cluster;
  for (const v1::Call& call : static_cast<const v1::HandlersInput&>(message).calls()) {
    cluster.Take(call);
  }
  cluster.Show();
}

}  // namespace addend::fuzz
