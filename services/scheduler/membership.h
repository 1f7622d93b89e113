// The scheduler's decisions: who is a member, which jobs run, what they have declared, and who sums
// it.
//
// Pure: no thread, socket, file or clock. Every event takes `now` and leaves in a Decision what has
// to be stored and sent, with the reasons for people. The owner serialises all calls, stores
// Decision::writes before it sends anything, and delivers updates of one watch in their order.
//
// Invariants
//  1. What was sent is implied by what was stored: a scheduler that restores the stored records and
//     answers each Watch with a full update continues where the former one ended.
//  2. A job's generation, plan version, tensor ids and server ids are never given twice.
//  3. A tensor's plan is published only when every server it names has reserved its partitions.
//  4. All nodes of a job are told the same plans, errors and states, except that an idle node sees
//     the job as FORMING: it waits for the next generation.
//  5. A member is lost at the end of its lease, or when a node cannot reach it; one that is unsure
//     registers again.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "proto/addend/v1/scheduler.pb.h"
#include "services/scheduler/event_log.h"
#include "services/scheduler/membership_types.h"
#include "services/scheduler/planner.h"
#include "services/scheduler/store/store.h"

namespace addend {

struct ServerSend {
  WatchId watch = 0;
  std::shared_ptr<const v1::ServerUpdate> update;
};
struct NodeSend {
  WatchId watch = 0;
  std::shared_ptr<const v1::NodeUpdate> update;  // often the same for all nodes of a job
};
struct WatchEnd {
  WatchId watch = 0;
  absl::Status reason;
};

struct Decision {
  std::vector<StoreWrite> writes;
  std::vector<WatchEnd> ended;  // first: these watches get nothing more
  std::vector<ServerSend> to_servers;
  std::vector<NodeSend> to_nodes;
  std::vector<std::string> reasons;  // one sentence each, for the log
  uint64_t planned = 0;              // tensors that were assigned to servers
};

// Since the process began.
struct MembersLost {
  uint64_t cpu_servers = 0;
  uint64_t colocated_servers = 0;
  uint64_t nodes = 0;
};

// For metrics.
struct JobSummary {
  std::string name;
  double t_opt_s = 0;  // 0: unknown
  uint64_t tensor_bytes = 0;
  uint64_t nodes_connected = 0;
  uint64_t nodes_expected = 0;
  uint64_t plan_version = 0;
};
struct ServerSpeed {
  ServerId id;
  std::string hostname;
  double speed = 1;
};
struct MembershipSummary {
  uint64_t cpu_servers = 0;
  uint64_t colocated_servers = 0;
  uint64_t nodes = 0;
  std::map<v1::JobState, uint64_t> jobs;
  uint64_t tensors = 0;
  uint64_t plan_version = 0;  // the highest of all jobs
  double imbalance = 0;       // largest (assigned - target) share of any server in any job
  uint64_t recommended_servers = 0;
  std::vector<JobSummary> by_job;
  std::vector<ServerSpeed> cpu_speeds;
  MembersLost lost;
  std::map<PlanReason, uint64_t> plan_changes;
  std::map<std::string, uint64_t, std::less<>> events;
};

class Membership {
 public:
  struct Options {
    absl::Duration lease = absl::Seconds(5);
    bool react_to_stragglers = true;        // servers that are slow get less to sum
    std::string version;                    // of this build, for GetStatus
    std::string store;                      // name of the store, for GetStatus
    std::function<std::string()> make_key;  // 32 new bytes that nobody can guess
    absl::Duration token_lifetime = absl::Hours(1);
    // What other machines compare with their clocks, which may jump; everything else follows `now`.
    std::function<absl::Time()> wall_clock = absl::Now;
    std::string servers_digest;  // of the proof that CPU servers must bring; empty: none
  };

  Membership(Options options, absl::Time now);

  // Takes in what an earlier scheduler stored; to be called first or not at all. All members get
  // two full leases: one to find this scheduler. DATA_LOSS if a record cannot be read.
  absl::Status Restore(absl::Time now, std::span<const StoreEntry> entries);

  absl::StatusOr<v1::RegisterServerResponse> RegisterServer(
      absl::Time now, const v1::RegisterServerRequest& request, Decision* decision);
  absl::StatusOr<v1::RegisterNodeResponse> RegisterNode(absl::Time now,
                                                        const v1::RegisterNodeRequest& request,
                                                        Decision* decision);
  // NOT_FOUND, here and below: this member is not known (any more); it should register again.
  absl::Status Heartbeat(absl::Time now, const v1::HeartbeatRequest& request, Decision* decision);
  absl::Status Drain(absl::Time now, const v1::DrainRequest& request, Decision* decision);
  absl::Status Leave(absl::Time now, const v1::MemberId& member, Decision* decision);

  // `watch` is new and not 0. The decision's first update for it is a full one. A former watch of
  // the same member ends.
  absl::Status WatchServer(absl::Time now, const v1::MemberId& member, WatchId watch,
                           Decision* decision);
  absl::Status WatchNode(absl::Time now, const v1::MemberId& member, WatchId watch,
                         Decision* decision);
  // The stream broke. Unknown watches are ignored: they were replaced or their member is gone.
  void WatchBroke(absl::Time now, WatchId watch);

  absl::Status AckReservation(absl::Time now, const v1::AckReservationRequest& request,
                              Decision* decision);
  // These ignore what belongs to a generation that is over: the member learns of it by its watch.
  absl::Status Declare(absl::Time now, const v1::DeclareRequest& request, Decision* decision);
  absl::Status Undeclare(absl::Time now, const v1::UndeclareRequest& request, Decision* decision);
  absl::Status ReportTrainers(absl::Time now, const v1::ReportTrainersRequest& request,
                              Decision* decision);
  absl::Status ReportIdle(absl::Time now, const v1::ReportIdleRequest& request, Decision* decision);
  absl::Status ReportFailure(absl::Time now, const v1::ReportFailureRequest& request,
                             Decision* decision);

  // A node cannot reach a CPU server any more, which is then lost at once. Ignored for colocated
  // servers, and for those that the node's job does not use.
  absl::Status ReportServerLost(absl::Time now, const v1::ReportServerLostRequest& request,
                                Decision* decision);
  absl::Status AckChange(absl::Time now, const v1::AckChangeRequest& request, Decision* decision);

  // Ends the leases that are over. Returns when to call it next at the latest.
  absl::Time Tick(absl::Time now, Decision* decision);

  v1::GetStatusResponse GetStatus(absl::Time now, const v1::GetStatusRequest& request) const;
  MembershipSummary Summary() const;

 private:
  // What one event changes, gathered so that each member gets at most one update and each record is
  // written once. Emptied by Flush.
  struct Event {
    absl::Time now;
    Decision* decision = nullptr;
    bool ids_changed = false;
    std::set<ServerId> changed_servers;
    std::set<JobId> changed_jobs;
    std::set<std::pair<JobId, NodeId>> changed_nodes;
    std::set<std::pair<JobId, uint64_t>> changed_agreements;
    std::set<std::pair<JobId, uint64_t>> changed_plans;
    std::vector<std::string> deleted;
    std::map<ServerId, v1::ServerUpdate> server_updates;
    std::map<ServerId, std::vector<std::pair<JobId, TensorId>>> reserved;
    std::map<JobId, v1::NodeUpdate> broadcasts;
    std::map<std::pair<JobId, NodeId>, v1::NodeUpdate> singles;  // to one node, after the broadcast
    std::set<std::pair<JobId, NodeId>> full;  // get the whole state instead of either
  };
  // Starts an event; its end writes the decision.
  class Scope;
  struct Watcher {
    ServerId server;  // 0: the node
    JobId job;
    NodeId node;
  };

  // membership.cc: members
  absl::Status ReplaceServer(const v1::RegisterServerRequest& request);
  absl::Status ReplaceNode(Job& job, const v1::RegisterNodeRequest& request);
  Server* FindServer(const v1::MemberId& member);
  Node* FindNode(const v1::MemberId& member, Job** job);
  template <typename Request>
  absl::StatusOr<Node*> Reporter(const Request& request, Job** job);
  Lease* FindLease(const Watcher& watcher);
  void EndWatch(Lease* lease, absl::Status reason);
  void StartWatch(Lease* lease, WatchId watch, Watcher watcher);
  void AddServer(Server server);
  // `kind`: left or lost.
  void RemoveServer(ServerId id, std::string_view kind, const std::string& why);
  void TakeIncidents(const v1::HeartbeatRequest& beat, Job* job, Decision* decision);

  // membership_trust.cc: who is let in
  absl::Status CheckProof(const v1::RegisterServerRequest& request) const;
  bool TokenIsDue(const Job& job, const Node& node) const;
  v1::NodeToken NewToken(const Job& job, Node* node) const;

  // membership_leases.cc: who is lost
  bool Alive(const Lease& lease) const;
  void ForgiveGap(absl::Time now);
  void EndLeases();
  void Accuse(Job& job, const Server& server, const Node& reporter, const std::string& why);
  void JudgeAccused();
  void RemoveEmptyJobs();
  absl::Time NextDeadline() const;

  // membership_jobs.cc: the state of jobs
  Job& CreateJob(const v1::RegisterNodeRequest& request);
  void RemoveJob(Job& job);
  void RemoveNode(Job& job, NodeId rank, const std::string& why, bool lost);
  void LoseNode(Job& job, NodeId rank, const std::string& why);
  void GoOnWithout(Job& job);
  void TellServers(Job& job);
  void FailJob(Job& job, std::string reason, uint32_t exit_code, std::string kind);
  void StartNextGenerationIfIdle(Job& job);
  void StartNextGeneration(Job& job);
  void TellIdleNodes(Job& job);
  void UpdateForming(Job& job);
  std::string WaitsFor(const Job& job) const;
  std::string WaitsForIdle(const Job& job) const;
  Job* FindJob(std::string_view name);
  const Server* ColocatedServer(const Job& job, NodeId node) const;
  std::vector<const Server*> EligibleServers(const Job& job) const;

  // membership_tensors.cc: agreement and plan
  void DeclareOne(Job& job, const Node& node, const v1::TensorDescriptor& descriptor,
                  const PartitionSize& partition_size, std::vector<uint64_t>* ready);
  void UndeclareOne(Job& job, NodeId node, const std::string& name, std::vector<uint64_t>* ready);
  void Repeat(Job& job, NodeId node, const Tensor& tensor, const v1::TensorDescriptor& descriptor);
  void Evaluate(Job& job, Tensor& tensor, std::vector<uint64_t>* ready);
  bool AllIn(const Job& job, const NodeSet& nodes) const;
  void PlanAll(Job& job, const std::vector<uint64_t>& ready);
  void PlanOne(Job& job, Tensor& tensor);
  void Reserve(Job& job, Tensor& tensor, v1::TensorPlan plan);
  void TakeLoad(Job& job, Tensor& tensor);
  void TakePartition(Job& job, Tensor& tensor, const PlannedPartition& partition);
  void Hold(Tensor& tensor, const PlannedPartition& partition);
  void AddLoad(Job& job, const PlannedPartition& partition);
  void DropLoad(Job& job, const PlannedPartition& partition);
  void Publish(Job& job, Tensor& tensor);
  void NoteFirstPlan(const Job& job, const Tensor& tensor);
  void Refuse(Job& job, Tensor& tensor, std::string kind, uint32_t exit_code, std::string message);
  void Unreserve(Job& job, Tensor& tensor, const std::set<ServerId>& except);
  void ServerAnswered(Job& job, Tensor& tensor);
  void RemoveTensor(Job& job, uint64_t agreement, std::vector<uint64_t>* ready);
  void DropTensors(Job& job);
  void TakeAnswer(Server& server, const v1::AckReservationRequest& answer);
  void NoteFreeBytes(Server& server, uint64_t free_bytes);
  void NoteRefusal(const Server& server, Job& job, Tensor& tensor, const std::string& reason);
  Tensor* FindTensor(Job& job, TensorId id);
  // What was set, or fits the slowest node's link.
  PartitionSize PartitionSizeOf(const Job& job) const;
  PlannerJob ViewOf(const Job& job) const;

  // membership_limits.cc: what one job may take. RESOURCE_EXHAUSTED with the numbers.
  absl::Status CheckRoomForJob(const std::string& name) const;
  static absl::Status CheckRoomForTensor(const Job& job, const std::string& name);
  static ServerRoom RoomFor(const Job& job, const Server& server);

  // membership_recovery.cc: new owners
  void ServerGone(Job& job, const Server& server, const std::string& why);
  void NodeGoneWith(Job& job, const Server& server, const std::string& why);
  void Recover(Job& job, ServerId dead, const std::vector<uint64_t>& agreements,
               const std::string& why);
  void MovePartition(Job& job, Tensor& tensor, const PlannedPartition& partition,
                     const PartitionPlace& to);
  void KeepAtSurvivors(Job& job, Tensor& tensor, const std::set<uint32_t>& partitions,
                       ServerId dead);
  void AskNewOwners(Job& job, Tensor& tensor);
  void NewOwnerAnswered(Job& job, Tensor& tensor, ServerId server);

  // membership_pace.cc: slow servers
  void TakePaces(absl::Time now, Job& job, NodeId node, const v1::HeartbeatRequest& beat);
  std::vector<Server*> CpuServersOf(const Job& job);
  std::map<ServerId, double> PaceWeights(const Job& job) const;
  void RaiseSpeeds();
  void FollowPaces(Job& job);
  bool FollowPace(const Job& job, const Pace::Deviation& deviation,
                  const std::vector<Server*>& all);
  bool SetSpeed(Server& server, double speed, const std::vector<Server*>& all);
  bool Try(Server& server, const std::vector<Server*>& all);

  // membership_change.cc: planned changes
  void AdvanceChanges();
  void AdvanceChange(Job& job);
  bool AllNodes(const Job& job, const std::set<NodeId>& nodes) const;
  void PlanChange(Job& job);
  std::vector<PlannedPartition> PartitionsOf(const Job& job,
                                             std::vector<uint64_t>* agreements) const;
  void AddMove(Job& job, Tensor& tensor, const PlannedPartition& partition,
               const PartitionPlace& to);
  void AskOwnersToBe(Job& job, Tensor& tensor);
  void Announce(Job& job);
  void AddHandOvers(const Job& job, const Tensor& tensor, ServerId owner,
                    v1::JobReservation* reservation) const;
  void TellToHandOver(Job& job);
  void FinishChange(Job& job);
  void CancelMoves(Job& job, Tensor& tensor, ServerId to);
  void LetGo(Job& job, Tensor& tensor, ServerId from, const std::set<uint32_t>& partitions);
  bool MovesAreHeldBack(const Job& job) const;
  uint64_t AnnouncedChange(const Job& job) const;
  v1::TensorPlan PlanForNodes(const Job& job, const Tensor& tensor) const;
  bool Drained(const Server& server) const;
  void TellDrained();

  // membership_status.cc
  v1::JobStatus StatusOfJob(const Job& job, absl::Time now) const;
  uint64_t RecommendedServers() const;

  // membership_updates.cc: what an event sends and stores
  void Flush();
  void FlushServers();
  void FlushNodes();
  void FlushRecords();
  v1::ServerUpdate FullServerUpdate(const Server& server,
                                    std::vector<std::pair<JobId, TensorId>>* reserved) const;
  bool MayUse(const Job& job, const Server& server) const;
  v1::NodeUpdate FullNodeUpdate(const Job& job) const;
  void FillState(const Job& job, v1::NodeUpdate* update) const;
  void FillServers(const Job& job, v1::NodeUpdate* update) const;
  using SharedUpdate = std::shared_ptr<const v1::NodeUpdate>;
  SharedUpdate AsSeenBy(const Job& job, const Node& node, const SharedUpdate& update) const;
  void SendTo(const Job& job, Node& node, const SharedUpdate& update);
  void AskToHold(const Job& job, const Tensor& tensor, ServerId server, const Owned& owned);
  v1::JobReservation* ReservationFor(ServerId server, const Job& job);
  v1::JobReservation* ReleasesFor(ServerId server, const Job& job);
  void DescribeJob(const Job& job, v1::JobReservation* reservation) const;
  void Say(std::string reason);                                              // for the log
  void Note(std::string_view kind, std::string_view job, std::string text);  // and for people
  void NextPlanVersion(Job& job, PlanReason reason);
  void KeepOptimum(Job& job);
  v1::NodeUpdate& Broadcast(const Job& job);
  v1::NodeUpdate& Single(const Job& job, NodeId node);

  // membership_restore.cc
  Lease RestoredLease() const;
  absl::Status RestoreOne(const StoreEntry& entry);
  absl::Status RestoreServer(const v1::ServerRecord& record);
  absl::Status RestoreJob(const v1::JobRecord& record);
  absl::Status RestoreNode(const v1::NodeRecord& record);
  absl::Status RestoreAgreement(const v1::AgreementRecord& record);
  absl::Status RestorePlan(const v1::PlanRecord& record);

  const Options options_;
  const absl::Time started_;
  absl::Time last_tick_;

  uint32_t next_server_ = 1;
  uint64_t next_job_ = 1;
  uint64_t next_update_;  // from the clock: larger than any of an earlier scheduler's
  std::map<ServerId, Server> servers_;
  std::map<JobId, Job> jobs_;
  // Indices of the two above.
  std::map<std::pair<std::string, NodeId>, ServerId> colocated_;
  std::map<std::string, JobId, std::less<>> job_by_name_;
  std::map<WatchId, Watcher> watches_;
  Event event_;

  // Of this process; not stored.
  EventLog log_;
  MembersLost lost_;
  std::map<PlanReason, uint64_t> plan_changes_;
};

}  // namespace addend
