// Any content of a store: a scheduler that starts on it either reports that it is damaged, or
// works: members return and follow it, time passes, and another scheduler can start on its store.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "services/scheduler/membership.h"
#include "services/scheduler/records.h"
#include "tests/fuzz/calls.h"
#include "tests/fuzz/check.h"
#include "tests/fuzz/fuzz_input.pb.h"
#include "tests/fuzz/message_target.h"

namespace addend::fuzz {
namespace {

using google::protobuf::Message;

std::pair<std::string, std::string> EntryOf(const v1::StoredRecord& stored) {
  const auto entry = [&stored](const std::string& key, const Message& record) {
    return std::pair(stored.key().empty() ? key : stored.key(), record.SerializeAsString());
  };
  switch (stored.record_case()) {
    case v1::StoredRecord::kIds:
      return entry(records::kIds, stored.ids());
    case v1::StoredRecord::kServer:
      return entry(records::ServerKey(stored.server().server_id()), stored.server());
    case v1::StoredRecord::kJob:
      return entry(records::JobKey(stored.job().job_id()), stored.job());
    case v1::StoredRecord::kNode:
      return entry(
          records::NodeKey(stored.node().job_id(), stored.node().registration().node_rank()),
          stored.node());
    case v1::StoredRecord::kAgreement:
      return entry(
          records::AgreementKey(stored.agreement().job_id(), stored.agreement().agreement()),
          stored.agreement());
    case v1::StoredRecord::kPlan:
      return entry(records::PlanKey(stored.plan().job_id(), stored.plan().agreement()),
                   stored.plan());
    default:
      return {stored.key(), stored.raw()};
  }
}

class Scheduler {
 public:
  explicit Scheduler(const v1::StoreInput& input) {
    for (const v1::StoredRecord& record : input.records()) store_.insert(EntryOf(record));
  }

  absl::Status Start() {
    membership_ = std::make_unique<Membership>(
        Membership::Options{
            .version = "1", .store = "memory", .make_key = [] { return std::string(32, 't'); }},
        now_);
    const std::vector<StoreEntry> entries(store_.begin(), store_.end());
    return membership_->Restore(now_, entries);
  }
  void Take(const v1::Call& call);
  // All members in the store return, and carry out their updates.
  void Follow();
  void Show() {
    membership_->GetStatus(now_, {});
    membership_->Summary();
  }

 private:
  void ReturnMembers();
  void Apply(Decision decision) {
    for (const StoreWrite& write : decision.writes) {
      if (write.value) {
        store_[write.key] = *write.value;
      } else {
        store_.erase(write.key);
      }
    }
    for (const WatchEnd& end : decision.ended) members_.erase(end.watch);
    for (const ServerSend& send : decision.to_servers) to_servers_.push_back(send);
    for (const NodeSend& send : decision.to_nodes) to_nodes_.push_back(send);
  }
  // The decision of a call holds, whether the call was accepted or refused.
  template <typename Request, typename Answer>
  void Tell(Outcome<Answer> (Membership::*event)(absl::Time, const Request&),
            const Request& request) {
    auto [answer, decision] = (membership_.get()->*event)(now_, request);
    answer.IgnoreError();
    Apply(std::move(decision));
  }
  using WatchFn = Outcome<absl::Status> (Membership::*)(absl::Time, const v1::WatchRequest&,
                                                        WatchId);
  void Watch(WatchFn watch, const v1::WatchRequest& request) {
    const WatchId id = ++last_watch_;
    members_[id] = request.member();
    auto [answer, decision] = (membership_.get()->*watch)(now_, request, id);
    if (!answer.ok()) members_.erase(id);
    Apply(std::move(decision));
  }
  void Pass(double seconds) {
    now_ += absl::Seconds(std::isfinite(seconds) ? std::clamp(seconds, 0.0, 100.0) : 0);
    Apply(membership_->Tick(now_).decision);
  }

  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
  std::map<std::string, std::string> store_;
  std::unique_ptr<Membership> membership_;
  WatchId last_watch_ = 0;
  std::map<WatchId, v1::MemberId> members_;
  std::vector<ServerSend> to_servers_;
  std::vector<NodeSend> to_nodes_;
  std::set<std::pair<WatchId, uint32_t>> reported_;  // with the generation
};

void Scheduler::Take(const v1::Call& call) {
  switch (call.what_case()) {
    case v1::Call::kRegisterServer:
      return Tell(&Membership::RegisterServer, OfThisVersion(call.register_server()));
    case v1::Call::kRegisterNode:
      return Tell(&Membership::RegisterNode, OfThisVersion(call.register_node()));
    case v1::Call::kHeartbeat:
      return Tell(&Membership::Heartbeat, ByItself(call.heartbeat()));
    case v1::Call::kLeave:
      return Tell(&Membership::Leave, ByItself(call.leave()).member());
    case v1::Call::kDrain:
      return Tell(&Membership::Drain, call.drain());
    case v1::Call::kWatchServer:
      return Watch(&Membership::WatchServer, ByItself(call.watch_server()));
    case v1::Call::kWatchNode:
      return Watch(&Membership::WatchNode, ByItself(call.watch_node()));
    case v1::Call::kAckReservation:
      return Tell(&Membership::AckReservation, ByItself(call.ack_reservation()));
    case v1::Call::kDeclare:
      return Tell(&Membership::Declare, ByItself(call.declare()));
    case v1::Call::kUndeclare:
      return Tell(&Membership::Undeclare, ByItself(call.undeclare()));
    case v1::Call::kReportTrainers:
      return Tell(&Membership::ReportTrainers, ByItself(call.report_trainers()));
    case v1::Call::kReportIdle:
      return Tell(&Membership::ReportIdle, ByItself(call.report_idle()));
    case v1::Call::kReportFailure:
      return Tell(&Membership::ReportFailure, ByItself(call.report_failure()));
    case v1::Call::kReportServerLost:
      return Tell(&Membership::ReportServerLost, ByItself(call.report_server_lost()));
    case v1::Call::kAckChange:
      return Tell(&Membership::AckChange, ByItself(call.ack_change()));
    case v1::Call::kGetStatus:
      membership_->GetStatus(now_, call.get_status());
      return;
    case v1::Call::kPassS:
      return Pass(call.pass_s());
    case v1::Call::kFollow:
      return Follow();
    default:
      return;  // not an update of the scheduler
  }
}

void Scheduler::ReturnMembers() {
  const auto store = store_;
  for (const auto& [key, value] : store) {
    v1::WatchRequest watch;
    v1::MemberId& member = *watch.mutable_member();
    v1::ServerRecord server;
    v1::NodeRecord node;
    if (key.starts_with(records::kServerPrefix) && server.ParseFromString(value)) {
      member.set_server_id(server.server_id());
      member.set_incarnation(server.registration().incarnation());
      member.set_key(server.registration().member_key());
      Watch(&Membership::WatchServer, watch);
    } else if (key.starts_with(records::kNodePrefix) && node.ParseFromString(value)) {
      member.set_job_id(node.job_id());
      member.set_node_rank(node.registration().node_rank());
      member.set_incarnation(node.registration().incarnation());
      member.set_key(node.registration().member_key());
      Watch(&Membership::WatchNode, watch);
    }
  }
}

void Scheduler::Follow() {
  if (members_.empty()) ReturnMembers();
  for (int turn = 0; turn < 8 && (!to_servers_.empty() || !to_nodes_.empty()); ++turn) {
    for (const ServerSend& send : std::exchange(to_servers_, {})) {
      v1::AckReservationRequest ack;
      if (!members_.contains(send.watch)) continue;
      *ack.mutable_member() = members_[send.watch];
      ack.set_update_id(send.update->update_id());
      ack.set_free_bytes(1 << 20);
      Tell(&Membership::AckReservation, ack);
    }
    for (const NodeSend& send : std::exchange(to_nodes_, {})) {
      if (!members_.contains(send.watch)) continue;
      v1::ReportTrainersRequest trainers;
      *trainers.mutable_member() = members_[send.watch];
      trainers.set_generation(send.update->generation());
      trainers.set_initialised(1);
      // Only once, because the whole job is told of each report.
      if (send.update->state() == v1::FORMING &&
          reported_.emplace(send.watch, send.update->generation()).second) {
        Tell(&Membership::ReportTrainers, trainers);
      }
      if (send.update->change() == 0 || !members_.contains(send.watch)) continue;
      v1::AckChangeRequest ack;
      *ack.mutable_member() = members_[send.watch];
      ack.set_generation(send.update->generation());
      ack.set_change(send.update->change());
      Tell(&Membership::AckChange, ack);
      ack.set_following(true);
      Tell(&Membership::AckChange, ack);
    }
  }
}

}  // namespace

std::unique_ptr<Message> NewInput() { return std::make_unique<v1::StoreInput>(); }

void TakeInput(const Message& message) {
  const auto& input = static_cast<const v1::StoreInput&>(message);
  Scheduler scheduler(input);
  if (!scheduler.Start().ok()) return;
  scheduler.Show();
  scheduler.Follow();
  for (const v1::Call& call : input.calls()) scheduler.Take(call);
  scheduler.Show();
  const absl::Status again = scheduler.Start();
  FUZZ_CHECK(again.ok(), again.ToString().c_str());  // on the records of a scheduler
  scheduler.Show();
}

}  // namespace addend::fuzz
