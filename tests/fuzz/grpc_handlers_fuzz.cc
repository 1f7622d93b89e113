// What members and strangers may call, in any order: every handler of a real scheduler, those of a
// summation server, and what a scheduler may tell that server. Every call is answered, the server
// stays below its memory limit and gives all of it back, and people can read the scheduler's
// status.
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
// What partitions take beside their accumulators grows with the nodes, and is not limited.
constexpr uint32_t kNodesMost = 64;

Engine* TheEngine() {
  static Engine* const engine = Engine::Create({.shards = 2,
                                                .memory_limit_bytes = kMemoryLimit,
                                                .incarnation = Incarnation(1),
                                                .send_limits = {},
                                                .network = nullptr,
                                                .external_slots = nullptr})
                                    ->release();
  return engine;
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
  void Tell(grpc::ServerUnaryReactor* (SchedulerService::*handler)(grpc::CallbackServerContext*,
                                                                   const Request*, Response*),
            const Request& request) {
    grpc::CallbackServerContext context;
    grpc::testing::DefaultReactorTestPeer peer(&context);
    Response response;
    (scheduler_.get()->*handler)(&context, &request, &response);
    FUZZ_CHECK(peer.test_status_set(), "every call is answered");
  }
  // Members do what they have been told.
  void Follow();
  v1::AckReservationRequest Update(v1::ServerUpdate update);
  void Ask(const v1::RollCallRequest& request);
  void Converse(const v1::LinkSignal& signal);

  prometheus::Registry registry_;
  std::unique_ptr<SchedulerService> scheduler_;
  grpc::CallbackServerContext context_;
  std::vector<std::pair<v1::MemberId, std::unique_ptr<Watch<v1::ServerUpdate>>>> servers_;
  std::vector<std::pair<v1::MemberId, std::unique_ptr<Watch<v1::NodeUpdate>>>> nodes_;
  std::set<std::pair<const void*, uint32_t>> reported_;  // by stream and generation
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
  TheEngine()->RollCall(JobId(1), 1);  // the shard has answered when it is done with this
  FUZZ_CHECK(conversation.Hear() == 2, "a challenge, and to everybody why there is no link");
}

void Cluster::Follow() {
  for (auto& [member, watch] : servers_) {
    for (v1::ServerUpdate& update : watch->Read()) {
      v1::AckReservationRequest ack = Update(std::move(update));
      *ack.mutable_member() = member;
      ack.set_update_id(update.update_id());
      Tell(&SchedulerService::AckReservation, ack);
    }
  }
  for (auto& [member, watch] : nodes_) {
    for (const v1::NodeUpdate& update : watch->Read()) {
      v1::ReportTrainersRequest trainers;
      *trainers.mutable_member() = member;
      trainers.set_generation(update.generation());
      trainers.set_initialised(1);
      // Once: each report is told to all of the job.
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
  switch (call.what_case()) {
    case v1::Call::kRegisterServer:
      return Tell(&S::RegisterServer, OfThisVersion(call.register_server()));
    case v1::Call::kRegisterNode:
      return Tell(&S::RegisterNode, OfThisVersion(call.register_node()));
    case v1::Call::kHeartbeat:
      return Tell(&S::Heartbeat, call.heartbeat());
    case v1::Call::kLeave:
      return Tell(&S::Leave, call.leave());
    case v1::Call::kDrain:
      return Tell(&S::Drain, call.drain());
    case v1::Call::kWatchServer:
      servers_.emplace_back(call.watch_server().member(),
                            std::make_unique<Watch<v1::ServerUpdate>>(
                                scheduler_->WatchServer(&context_, &call.watch_server())));
      return;
    case v1::Call::kWatchNode:
      nodes_.emplace_back(call.watch_node().member(),
                          std::make_unique<Watch<v1::NodeUpdate>>(
                              scheduler_->WatchNode(&context_, &call.watch_node())));
      return;
    case v1::Call::kAckReservation:
      return Tell(&S::AckReservation, call.ack_reservation());
    case v1::Call::kDeclare:
      return Tell(&S::Declare, call.declare());
    case v1::Call::kUndeclare:
      return Tell(&S::Undeclare, call.undeclare());
    case v1::Call::kReportTrainers:
      return Tell(&S::ReportTrainers, call.report_trainers());
    case v1::Call::kReportIdle:
      return Tell(&S::ReportIdle, call.report_idle());
    case v1::Call::kReportFailure:
      return Tell(&S::ReportFailure, call.report_failure());
    case v1::Call::kReportServerLost:
      return Tell(&S::ReportServerLost, call.report_server_lost());
    case v1::Call::kAckChange:
      return Tell(&S::AckChange, call.ack_change());
    case v1::Call::kGetStatus:
      return Tell(&S::GetStatus, call.get_status());
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
