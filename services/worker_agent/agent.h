// The agent of one node: takes the local ranks' contributions, pushes the node's sum to the
// partitions' owners by priority, and hands the results back. All state belongs to one thread, the
// core loop; other threads post to it.
//
// Invariants
//  1. Only trainers of one generation are admitted at a time; a new generation begins when every
//  node is idle.
//  2. Nobody writes a contribution between its push and its result; a result slot is not written
//  again before the
//     second round after it.
//  3. Once a generation has failed, every admitted trainer has been told why, and nothing of it is
//  accepted any more.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "lib/intranode/topology.h"
#include "lib/server/link_signals.h"
#include "lib/server/transport_options.h"
#include "lib/transport/inproc/factory.h"
#include "lib/transport/rdma/rdma_transport.h"
#include "lib/transport/tcp/factory.h"
#include "proto/addend/v1/agent.pb.h"
#include "proto/addend/v1/scheduler.pb.h"
#include "proto/addend/v1/trace.pb.h"
#include "services/worker_agent/device_groups.h"
#include "services/worker_agent/host_copies.h"
#include "services/worker_agent/journal.h"
#include "services/worker_agent/pipeline.h"
#include "services/worker_agent/result_slots.h"
#include "services/worker_agent/server_link.h"
#include "services/worker_agent/staging.h"
#include "services/worker_agent/trainer_port.h"

namespace addend {

// What the agent tells the scheduler; never blocks.
class SchedulerReports {
 public:
  virtual ~SchedulerReports() = default;
  virtual void Declare(Generation generation, const v1::TensorDescriptor& tensor) = 0;
  virtual void Undeclare(Generation generation, const std::string& name) = 0;
  // So many local ranks wait for the generation to begin.
  virtual void ReportTrainers(Generation generation, uint32_t initialised) = 0;
  virtual void ReportIdle(Generation generation) = 0;
  virtual void ReportFailure(Generation generation, const absl::Status& why,
                             const std::string& kind) = 0;
  // A CPU server that cannot be reached.
  virtual void ReportServerLost(Generation generation, ServerId server,
                                const absl::Status& why) = 0;
  // This node is connected to the owners to be of a planned change, or follows all of them.
  virtual void AckChange(Generation generation, uint64_t change, bool following) = 0;
};

// For the metrics: since the agent's start.
struct AgentNumbers {
  RoundTimes rounds;
  std::array<DurationHistogram, kPartNames.size()> parts;
  uint64_t partitions_in = 0;
  uint64_t partitions_out = 0;
  uint64_t partitions_resent = 0;
  uint64_t direct_bytes = 0;
  uint64_t bytes_out = 0;
  uint64_t bytes_in = 0;
  uint64_t queued = 0;  // frames that wait for a link
  uint64_t credit_bytes = 0;
  double oldest_open_s = 0;
  uint64_t plan_changes = 0;
  std::map<std::string, uint64_t> failures;  // by cause
  std::vector<uint64_t> nonfinite;           // by local rank
  uint64_t nonfinite_results = 0;
};

class Agent final : private TrainerEvents, private ServerEvents {
 public:
  struct Options {
    std::string job;
    NodeId node;
    uint32_t num_nodes = 1;
    uint32_t local_size = 1;
    Incarnation incarnation;
    std::string hostname;
    std::string advertise;  // this machine, as others reach it
    std::string socket;
    uint32_t socket_mode = 0600;
    double bandwidth_bps = 0;  // of this machine, each direction; 0: unknown
    absl::Duration connect_timeout = absl::Seconds(60);
    absl::Duration stall_timeout = absl::Seconds(300);
    uint32_t audit_one_in = 0;  // of so many partitions' rounds one is audited; 0: none
    TransportMode transport = TransportMode::kAuto;  // of links to other machines
    bool encrypt_data = false;                       // on them, both ways; they are TCP then
    rdma::Devices rdma_devices = {};                 // that they may use
    std::string why_no_rdma = {};                    // if there are none
    RdmaOptions rdma = {};
    std::optional<Topology> topology = {};   // recorded of this machine; none: it is read when
                                             // ranks push from GPUs
    std::optional<Strategy> intranode = {};  // how they aggregate; none: by the topology
    bool deterministic_intranode = true;     // sums among GPUs are in the order of the ranks
    bool gpudirect = false;                  // NICs read contributions from GPUs where they can
  };

  // Listens for trainers at once; they wait until the job is complete. INVALID_ARGUMENT: the
  // socket.
  static absl::StatusOr<std::unique_ptr<Agent>> Create(Options options,
                                                       std::shared_ptr<InprocNetwork> network);
  ~Agent();

  // ---- any thread ----
  // The scheduler has taken the node in. `reports` outlives the agent. `colocated_server` is 0
  // without one.
  void Begin(const v1::RegisterNodeResponse& registration, ServerId colocated_server,
             SchedulerReports* reports);
  void OnUpdate(const v1::NodeUpdate& update);
  // The process is about to end: every trainer that is connected, or comes within `grace`, is told
  // why. Returns when all local ranks have been told, or after `grace`.
  void RefuseTrainers(const absl::Status& why, absl::Duration grace);
  // Nothing is told to the scheduler any more: `reports` may go.
  void End();
  v1::GetAgentResponse Snapshot();
  AgentNumbers Numbers();
  // The ways of the partitions in the last `rounds` rounds of every tensor.
  void FillTrace(JobId job, uint64_t rounds, v1::TraceChunk* chunk);
  v1::Traffic traffic() const;
  // Adds what the agent knows to a heartbeat: its traffic, what it is doing ("2 of 2 trainers
  // connected, 812 rounds"), and how long each server but the colocated one was at work for it.
  void FillBeat(v1::HeartbeatRequest* beat);
  std::shared_ptr<const ResultSlots> result_slots() const { return result_slots_; }

 private:
  struct Instances {
    std::deque<std::shared_ptr<Tensor>>
        tensors;  // of one name; the front is the one the scheduler knows
  };
  struct Waiting {
    TrainerLink* trainer;
    ipc::Message init;
    absl::Time since;
  };
  using LinkKey = std::pair<uint32_t, uint32_t>;  // server, shard

  Agent(Options options, std::shared_ptr<InprocNetwork> network);

  // TrainerEvents (agent_trainers.cc)
  absl::Status OnMessage(TrainerLink* trainer, TrainerMessage message) override;
  void OnTrainerGone(TrainerLink* trainer, const absl::Status& why) override;
  absl::Status OnInit(TrainerLink* trainer, const TrainerMessage& message);
  absl::Status CheckInit(const TrainerMessage& message) const;
  void RefuseInit(TrainerLink* trainer, const absl::Status& why, const std::string& kind);
  void RefuseStalledInits(absl::Time now);
  void AdmitWaiting();
  void Admit(const Waiting& waiting);
  void TellProgress(TrainerLink* trainer) const;
  std::string ProgressText() const;
  absl::Status OnDeclare(TrainerLink* trainer, const TrainerMessage& message);
  absl::StatusOr<std::shared_ptr<Tensor>> FindOrCreate(uint32_t local_rank, TensorShape shape);
  void DeclareFront(Instances* instances);
  absl::Status OnPush(TrainerLink* trainer, const ipc::Message& push);
  absl::Status OnUndeclare(TrainerLink* trainer, uint32_t number);
  absl::Status OnShutdown(TrainerLink* trainer);
  bool AnyTrainer() const;
  absl::Status RefusedTensor() const;
  void ReportWaiting();
  void MaybeReportIdle(bool waited);

  // Trainers with GPUs (agent_devices.cc)
  absl::Status OnDevice(TrainerLink* trainer, std::string_view bus_id);
  absl::Status OnGroupId(TrainerLink* trainer, std::string_view id);
  absl::Status OnAttach(TrainerLink* trainer, uint32_t number);
  absl::Status OnStaged(TrainerLink* trainer, const ipc::Message& staged);
  absl::Status OnDirect(TrainerLink* trainer, const ipc::Message& offer, UniqueFd dmabuf);
  absl::Status OnFetched(TrainerLink* trainer, const ipc::Message& fetched);
  absl::Status OnDeviceFailed(TrainerLink* trainer, std::string_view why);
  absl::Status DecideLayout();
  void DecideDirect(const Topology& machine, Layout* layout);
  // Whether a NIC shall read the round that is about to be contributed from the GPU.
  bool GoesDirect(const Tensor& tensor) const;
  bool AskForHostCopy(const Tensor& tensor, uint32_t partition);
  void StopReadingDevices(const std::string& why);
  void TellGroup(uint32_t local_rank);
  void TellContribute(Tensor* tensor, uint32_t lead);
  void TellArrived(const Tensor& tensor, uint32_t partition);
  // Notes that the rank has pushed, from a GPU or not, and starts what its group can start.
  void NoteDevicePush(const std::shared_ptr<Tensor>& tensor, uint32_t local_rank, bool on_device);
  void CheckDevices(absl::Time now);
  void TellMissingDevices();
  std::string DescribeUnstaged(const Tensor& tensor) const;
  std::string RanksOf(const std::vector<uint32_t>& local_ranks) const;

  // ServerEvents and rounds (agent_rounds.cc)
  void LimitInFlight();
  MutableBytes RoomForResult(const ServerLink* link, const FrameHeader& header) override;
  void OnResult(const ServerLink* link, const FrameHeader& header, Bytes result) override;
  MutableBytes RoomForStamp(const ServerLink* link, const FrameHeader& header) override;
  void OnStamp(const ServerLink* link, const FrameHeader& header, Bytes stamp) override;
  void OnSendAgain(const ServerLink* link, const FrameHeader& header) override;
  // The tensor of a frame that its partition's owner has sent, or null.
  std::shared_ptr<Tensor> FindOwned(const ServerLink* link, const FrameHeader& header) const;
  Tensor* Expecting(const ServerLink* link, const FrameHeader& header) const;
  void TryStart(const std::shared_ptr<Tensor>& tensor);
  // Sends the contribution once it is in host memory, if its result is waited for then.
  void BringAndSend(const Task& task);
  // The result is in its slot: it is delivered once nothing of the round is under way to host
  // memory any more, if `link` still leads to the owner then.
  void DeliverWhenFetched(const ServerLink* link, const FrameHeader& header);
  void Deliver(const Task& task);

  // Trust (agent_trust.cc)
  // The server that sums the partition's round a second time, if one does.
  ServerLink* AuditorOf(const Tensor& tensor, uint32_t partition, Round round);
  void SendAudit(const Task& task);
  void SendDigest(const Tensor& tensor, uint32_t partition, Round round);
  // The result is not finite: which of this node's ranks pushed such a value?
  void NoteNonFinite(const Tensor& tensor, uint32_t partition);
  void Complete(Tensor* tensor);
  // `kind` as NodeUpdate.failed_kind, or empty.
  void FailTensor(Tensor* tensor, absl::Status why, const std::string& kind);
  void CheckStalls();
  std::string DescribeStall(const Tensor& tensor) const;

  // ServerEvents and new owners (agent_recovery.cc)
  void OnRecovered(const ServerLink* link, const FrameHeader& header) override;
  void OnLinkOpen(ServerLink* link, Incarnation server) override;
  void OnLinkLost(ServerLink* link, const absl::Status& why) override;
  void SendResult(const ServerLink* link, const FrameHeader& asked);
  void Reconnect(const LinkKey& key);
  void ReconnectLater(const ServerLink& link, bool at_once);
  bool TakeAnotherWay(ServerLink* link, const absl::Status& why);
  // By the best transport that both ends have. FAILED_PRECONDITION: there is none.
  absl::Status Connect(ServerLink* link, const v1::ServerInfo& server, absl::Duration timeout);
  void ReportLost(ServerLink* link, const absl::Status& why);
  void CloseDeadLinks();
  void FollowPlan(const std::shared_ptr<Tensor>& tensor, const v1::TensorPlan& plan);
  // What a link leads to.
  enum class Use : uint8_t { kNone, kOwnerToBe, kOwner };
  Use UseOf(const ServerLink* link) const;

  // ServerEvents and planned changes (agent_change.cc)
  void OnMoved(const ServerLink* link, const FrameHeader& header) override;
  void NoteChange(const v1::NodeUpdate& update);
  void TakeMoves(const std::shared_ptr<Tensor>& tensor, const v1::TensorPlan& plan);
  void SetNext(PartitionOwner* owner, ServerLink* next, PlanVersion version);
  void Follow(Tensor* tensor, uint32_t partition, ServerLink* link, PlanVersion version);
  void ForgetTensor(TensorId id);
  bool ConnectedToOwnersToBe() const;
  void AckChange();

  // ServerEvents and the end of the generation (agent_failure.cc)
  void OnAborted(const ServerLink* link, const FrameHeader& header) override;
  // `report`: the scheduler does not know yet.
  void FailJob(const absl::Status& why, const std::string& kind, bool report);
  static std::string CauseOf(const std::string& kind);
  bool AwaitsVerdict() const;
  void EndIfDecided();
  void EndGeneration(bool decided);
  void NoteMembers(const v1::NodeUpdate& update);
  void TellMembers(TrainerLink* trainer) const;

  // The job and the plan (agent.cc)
  void Apply(const v1::NodeUpdate& update);
  void BeginGeneration(Generation generation);
  void ApplyPlan(const v1::TensorPlan& plan);
  absl::StatusOr<ServerLink*> LinkTo(uint32_t server, uint32_t shard);
  absl::Status CheckReachable(const std::string& where, const v1::DataEndpoint& endpoint) const;
  void DropRetiredLinks();
  void DescribeOpen(v1::GetAgentResponse* response) const;
  std::string Activity() const;
  // Something that people want to know of; the next heartbeat tells the scheduler.
  void NoteIncident(const std::string& kind, std::string text);
  std::string DescribeLinks() const;

  const Options options_;
  std::unique_ptr<EventLoop> loop_;
  const std::shared_ptr<InprocNetwork> network_;
  const std::shared_ptr<ResultSlots> result_slots_ = std::make_shared<ResultSlots>();

  // ---- owned by the core loop's thread ----
  std::shared_ptr<Transport> tcp_;
  std::shared_ptr<Transport> inproc_;
  LinkCaller link_caller_;
  std::shared_ptr<RdmaTransport> rdma_;  // null without a device
  std::unique_ptr<TrainerPort> port_;
  SchedulerReports* reports_ = nullptr;
  ServerId colocated_server_;
  NodeIdentity identity_;
  std::vector<v1::NodeUpdate> early_updates_;  // that came before Begin()

  v1::JobState job_state_ = v1::FORMING;
  std::string reason_;
  uint32_t nodes_;              // that take part in this generation
  uint32_t waiting_nodes_ = 0;  // for the next one
  PlanVersion plan_version_;
  uint64_t plan_changes_ = 0;
  std::map<uint32_t, v1::ServerInfo> servers_;
  Convoy convoy_;              // of all links that leave the node
  uint64_t stream_bytes_ = 0;  // pushed so far: where the next tensor begins in it
  std::map<LinkKey, std::unique_ptr<ServerLink>> links_;
  std::map<uint32_t, std::string> rdma_failures_;  // by server, in this generation: why
  uint64_t rdma_fallbacks_ = 0;
  std::map<uint32_t, std::string> routes_;  // by server: the last, as it was logged
  std::set<uint32_t> lost_servers_;  // that the scheduler has been told of, in this generation
  // The planned change that is under way; number 0: none.
  struct {
    uint64_t number = 0;
    uint64_t moves = 0;  // partitions that have yet to move
    bool connected_said = false;
    bool following_said = false;
  } change_;
  std::vector<std::unique_ptr<ServerLink>>
      retired_links_;  // of former generations, until they are closed

  std::vector<TrainerLink*> ranks_;  // admitted, by local rank
  std::vector<bool> ever_admitted_;  // in this generation
  std::deque<Waiting> waiting_;
  bool somebody_left_ = false;
  bool idle_reported_ = false;
  absl::Duration lease_;
  absl::Status failing_;       // why this generation fails: nothing of it starts any more
  uint32_t failing_code_ = 0;  // addend_code
  absl::Status failure_;       // the same once the trainers have been told
  absl::Status refusing_;      // set: the process is about to end
  uint32_t refused_ = 0;

  uint32_t next_number_ = 1;
  std::map<uint32_t, std::shared_ptr<Tensor>> by_number_;
  std::map<std::string, Instances> by_name_;
  absl::flat_hash_map<TensorId, std::shared_ptr<Tensor>> by_id_;
  bool owners_changed_ = false;  // since LimitInFlight()
  DeviceGroups devices_;
  absl::Time first_device_at_ = absl::InfiniteFuture();  // when the first rank named its GPU
  std::optional<uint32_t> direct_rank_;                  // from whose GPU a NIC reads
  StagingOrder staging_order_;
  HostCopies host_copies_;
  // Contributions that are sent when they are in host memory, each as urgently as was asked for.
  absl::flat_hash_map<PartitionId, Task> unsent_;
  StagingStage* staging_ = nullptr;
  PullStage* pull_ = nullptr;
  PushStage* push_ = nullptr;
  std::unique_ptr<Pipeline> pipeline_;
  uint64_t rounds_ = 0;
  Journal journal_;
  struct Incident {
    std::string kind;
    std::string text;
    int64_t at;  // TraceNow()
  };
  std::vector<Incident> incidents_;           // that the scheduler has not been told of
  std::map<std::string, uint64_t> failures_;  // of generations, by cause
  std::vector<uint64_t> nonfinite_;           // partitions, by local rank
  uint64_t nonfinite_results_ = 0;
  bool nonfinite_told_ = false;  // in this generation

  std::atomic<uint64_t> copied_bytes_{0};
};

// The addend_code (lib/client/addend.h) that a trainer gets for a failure.
uint32_t TrainerCode(const absl::Status& why, const std::string& kind);

}  // namespace addend
