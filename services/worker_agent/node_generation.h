// A generation of the job on this node: all state that ends with it. The agent replaces it as a
// whole when the next generation begins. Belongs to the agent's core thread.
//
// Its objects use only objects above them in this list; upward they report through listeners,
// ServerEvents, ContributionSource::Listener and GenerationState::Listener:
//
//   LocalRanks      the admitted trainers
//   TensorTable     the declared tensors
//   GenerationState running, failing, failed
//   Servers         links to the owners
//   Integrity       audits, values that are not finite
//   RoundRunner     pushes, results, completion
//   HostSource, DeviceRanks, DeviceSource   the contributions
//   PlanFollower    owners and moves
//   Departures, StallWatch, StallReport   rounds that cannot end, or stay open
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "services/worker_agent/departures.h"
#include "services/worker_agent/device_ranks.h"
#include "services/worker_agent/device_source.h"
#include "services/worker_agent/generation_state.h"
#include "services/worker_agent/host_source.h"
#include "services/worker_agent/integrity.h"
#include "services/worker_agent/local_ranks.h"
#include "services/worker_agent/node_context.h"
#include "services/worker_agent/plan_follower.h"
#include "services/worker_agent/round_runner.h"
#include "services/worker_agent/servers.h"
#include "services/worker_agent/stall_report.h"
#include "services/worker_agent/stall_watch.h"
#include "services/worker_agent/tensor_table.h"

namespace addend {

class NodeGeneration final : private ServerEvents, private GenerationState::Listener {
 public:
  // `context.identity` names the generation. All its pointers outlive this.
  explicit NodeGeneration(const NodeContext& context);
  NodeGeneration(const NodeGeneration&) = delete;
  NodeGeneration& operator=(const NodeGeneration&) = delete;

  // ---- trainers ----
  // A message of an admitted trainer. An error closes the connection.
  absl::Status OnMessage(Trainer* trainer, const ipc::Encoded& message, UniqueFd fd);
  void OnTrainerGone(Trainer* trainer, const absl::Status& why);
  // The trainer has been admitted: it hears of nodes that do not take part.
  void OnAdmitted(Trainer* trainer) const;
  LocalRanks* ranks() { return &ranks_; }

  // ---- the scheduler ----
  // Takes an update of this generation. True: a job that was not forming forms again.
  bool Apply(const v1::NodeUpdate& update);
  // Repeats reports to a scheduler that may have lost them.
  void ReportAgain() const;

  // Once a second.
  void CheckTimeouts();
  // The process ends: the trainers are told why, without a report.
  void Refuse(const absl::Status& why);
  // The next generation begins: closes trainers and links. Nothing else may be called afterwards.
  void End();
  // The agent ends.
  void CloseLinks(const absl::Status& why) { servers_.CloseAll(why); }

  const LocalRanks& ranks() const { return ranks_; }
  const TensorTable& tensors() const { return tensors_; }
  const GenerationState& state() const { return state_; }
  const Servers& servers() const { return servers_; }
  const Departures& departures() const { return departures_; }
  const StallReport& stall_report() const { return stall_report_; }

 private:
  // ServerEvents
  MutableBytes RoomForResult(const ServerLink* link, const FrameHeader& header) override;
  MutableBytes RoomForStamp(const ServerLink* link, const FrameHeader& header) override;
  void OnStamp(const ServerLink* link, const FrameHeader& header, Bytes stamp) override;
  absl::Status OnResult(const ServerLink* link, const FrameHeader& header,
                        const EncodedBytes& result) override;
  void OnSendAgain(const ServerLink* link, const FrameHeader& header) override;
  void OnMoved(const ServerLink* link, const FrameHeader& header) override;
  void OnRecovered(const ServerLink* link, const FrameHeader& header) override;
  void OnAborted(const ServerLink* link, const FrameHeader& header) override;
  void OnLinkOpen(ServerLink* link, Incarnation server) override;
  void OnLinkLost(ServerLink* link, const absl::Status& why) override;
  // GenerationState::Listener
  void OnFailed(bool decided) override;

  absl::Status OnPush(Trainer* trainer, const ipc::PushMessage& push);
  absl::Status OnDeclare(Trainer* trainer, ipc::DeclareMessage declare);
  absl::Status OnUndeclare(const Trainer& trainer, const ipc::UndeclareMessage& undeclare);
  absl::Status OnDeviceMessage(Trainer* trainer, const ipc::Encoded& message, UniqueFd fd);
  void FailForLostRank(const Trainer& trainer, const absl::Status& why);
  void TakeMembers(const v1::NodeUpdate& update);
  void TakeState(const v1::NodeUpdate& update);
  ipc::MembersMessage Members() const;

  ScopedLoop loop_;
  const NodeContext context_;
  NodeCounts nodes_;
  LocalRanks ranks_;
  TensorTable tensors_;
  GenerationState state_;
  Servers servers_;
  Integrity integrity_;
  RoundRunner rounds_;
  HostSource host_source_;
  DeviceRanks devices_;
  DeviceSource device_source_;
  PlanFollower plan_;
  Departures departures_;
  StallWatch stalls_;
  StallReport stall_report_;
};

}  // namespace addend
