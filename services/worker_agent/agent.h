// The agent of one node: takes the local ranks' contributions, pushes the node's sum to the
// partitions' owners by priority, and hands the results back. All state belongs to one thread, the
// core loop; other threads post to it.
//
// The agent owns the parts that outlive a generation of the job: loop, transports, trainer port,
// counters and the trainers that wait (admission.h). All other state is in the NodeGeneration
// (node_generation.h has its objects), which is replaced as a whole.
//
// Invariants
//  1. Only trainers of one generation are admitted at a time; a new generation begins when every
//     node is idle.
//  2. A contribution is not written between its push and its result; a result slot is not written
//     again before the second round after it.
//  3. Once a generation has failed, every admitted trainer has been told why, and the agent accepts
//     nothing more of that generation.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "lib/server/link_signals.h"
#include "lib/transport/inproc/factory.h"
#include "lib/transport/rdma/rdma_transport.h"
#include "lib/transport/this_machine/factory.h"
#include "proto/addend/v1/agent.pb.h"
#include "proto/addend/v1/scheduler.pb.h"
#include "proto/addend/v1/trace.pb.h"
#include "services/worker_agent/admission.h"
#include "services/worker_agent/agent_report.h"
#include "services/worker_agent/node_context.h"
#include "services/worker_agent/node_generation.h"
#include "services/worker_agent/node_options.h"
#include "services/worker_agent/result_slots.h"
#include "services/worker_agent/scheduler_reports.h"
#include "services/worker_agent/trainer.h"

namespace addend {

class Agent final : private TrainerEvents {
 public:
  using Options = NodeOptions;
  // The agent's surroundings, which outlive it; a simulation gives its own.
  struct Surroundings {
    Machine* machine = ThisMachine();
    // The trainers that said this node's rank have ended, and so has their generation: others may
    // say another rank to another agent. The door is closed. Called on the loop, once.
    std::function<void()> node_is_free = nullptr;
    // Opens the door to trainers, on the loop. Null: the socket of the options.
    std::function<absl::StatusOr<std::unique_ptr<TrainerDoor>>(EventLoop*, TrainerEvents*)>
        open_door = nullptr;
  };

  // Listens for trainers at once; they wait until the job is complete. INVALID_ARGUMENT: the
  // socket.
  static absl::StatusOr<std::unique_ptr<Agent>> Create(Options options,
                                                       std::shared_ptr<InprocNetwork> network) {
    return Create(std::move(options), std::move(network), Surroundings());
  }
  static absl::StatusOr<std::unique_ptr<Agent>> Create(Options options,
                                                       std::shared_ptr<InprocNetwork> network,
                                                       Surroundings surroundings);
  ~Agent();

  // ---- any thread ----
  // The scheduler has taken the node in. `reports` outlives the agent. `colocated_server` is 0
  // without a colocated server.
  void Begin(const v1::RegisterNodeResponse& registration, ServerId colocated_server,
             SchedulerReports* reports);
  void OnUpdate(const v1::NodeUpdate& update);
  // The node of the options, or of the trainers' ranks; nullopt: no trainer has come yet.
  std::optional<NodeId> node();
  // The process is about to end: every trainer that is connected, or connects within `grace`, is
  // told why. Returns when all local ranks have been told, or after `grace`.
  void RefuseTrainers(const absl::Status& why, absl::Duration grace);
  // Sends the scheduler no further report: `reports` may be destroyed.
  void End();
  v1::GetAgentResponse Snapshot();
  AgentNumbers Numbers();
  // As AgentReport.
  void FillTrace(JobId job, uint64_t rounds, v1::TraceChunk* chunk);
  void FillBeat(v1::HeartbeatRequest* beat);
  // Outlives everything that lives on it.
  EventLoop* loop() const { return loop_.get(); }
  std::shared_ptr<const ResultSlots> result_slots() const { return result_slots_; }

 private:
  // The parts that outlive a generation, in the order of construction.
  struct Lasting {
    explicit Lasting(const NodeOptions& options);
    NodeIdentity identity;
    SwitchedReports reports;
    JobProgress job;
    AgentCounters counters;
    Incidents incidents;
    Journal journal;
    PayloadEncoder encoder;
    Convoy convoy;
    ServerDirectory directory;  // its links use the encoder and the convoy
    Pulse pulse;
  };
  struct Transports {
    std::shared_ptr<Transport> tcp;
    std::shared_ptr<Transport> inproc;
    std::shared_ptr<Transport> shm;  // null: not wanted
    LinkCaller link_caller;
    std::shared_ptr<RdmaTransport> rdma;  // null without a NIC
  };

  Agent(Options options, std::shared_ptr<InprocNetwork> network, Surroundings surroundings);
  absl::Status Start();
  absl::Status StartRdma();
  NodeContext MakeContext();

  // TrainerEvents
  absl::Status OnMessage(Trainer* trainer, const ipc::Encoded& message, UniqueFd fd) override;
  void OnTrainerGone(Trainer* trainer, const absl::Status& why) override;

  void Apply(const v1::NodeUpdate& update);
  void BeginGeneration(Generation generation);
  void AdmitWaiting();
  void FreeNode();
  void CheckTimeouts();

  const Options options_;
  const Surroundings surroundings_;
  std::unique_ptr<EventLoop> loop_;
  const std::shared_ptr<InprocNetwork> network_;
  const std::shared_ptr<ResultSlots> result_slots_ = std::make_shared<ResultSlots>();

  // ---- owned by the core loop's thread ----
  Transports transports_;
  Lasting lasting_;
  NodeContext context_;
  std::unique_ptr<NodeGeneration> generation_;
  std::unique_ptr<Admission> admission_;
  const AgentReport report_{&context_};
  std::unique_ptr<TrainerDoor> door_;
  std::vector<v1::NodeUpdate> early_updates_;  // before Begin()
};

}  // namespace addend
