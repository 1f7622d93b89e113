// The rounds of a generation's tensors on this node, in five steps:
//
//   1. OnPush     a local rank has pushed; with the last rank TryStart() starts the round
//   2. Begin      each partition waits at its ContributionSource until it can be read (OnReady)
//   3. Send       the contribution goes to its owner's link, which sends urgent partitions first
//   4. OnResult   the owner's result is in the slot that the trainers have mapped
//   5. Deliver    with the last partition Complete() tells the ranks
//
// Belongs to the agent's core thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "lib/encoding/payload_encoder.h"
#include "services/worker_agent/contribution_source.h"
#include "services/worker_agent/generation_state.h"
#include "services/worker_agent/integrity.h"
#include "services/worker_agent/local_ranks.h"
#include "services/worker_agent/node_context.h"
#include "services/worker_agent/servers.h"
#include "services/worker_agent/tensor_table.h"

namespace addend {

class RoundRunner final : public ContributionSource::Listener {
 public:
  using Shared = std::shared_ptr<NodeTensor>;

  // All pointers outlive this.
  RoundRunner(const NodeContext& context, const LocalRanks* ranks, const TensorTable* tensors,
              GenerationState* state, const NodeCounts* nodes, Servers* servers,
              Integrity* integrity)
      : context_(context),
        ranks_(ranks),
        tensors_(tensors),
        state_(state),
        nodes_(nodes),
        servers_(servers),
        integrity_(integrity) {}
  // Before the first push, and whenever ranks begin to push from GPUs. `source` outlives this.
  void Use(ContributionSource* source) { source_ = source; }
  ContributionSource* source() const { return source_; }

  // ---- of trainers and the plan ----
  // INVALID_ARGUMENT: not the rank's next round.
  absl::Status OnPush(const Shared& tensor, Trainer* trainer, const ipc::PushMessage& push);
  // Starts the round if all ranks have pushed it and the plan is known.
  void TryStart(const Shared& tensor);
  // The tensor will never have a result; the ranks that have pushed it are told.
  void FailTensor(NodeTensor* tensor, absl::Status why);
  // Sends the contribution again if its result is awaited and its round is later than `held`.
  void Resend(const Shared& tensor, uint32_t partition, Round held = Round());

  // Once a second: what the links' bytes cost, for the encoder.
  void MeasureLinks();
  // Once a second. Asks the scheduler if this process has just paused (pulse.h).
  void NotePause();
  // The scheduler has answered: the rounds that were complete meanwhile are told.
  void OnPauseConfirmed();

  // ---- of the owners: as ServerEvents ----
  MutableBytes RoomForResult(const ServerLink* link, const FrameHeader& header) const;
  absl::Status OnResult(const ServerLink* link, const FrameHeader& header,
                        const EncodedBytes& result);
  MutableBytes RoomForStamp(const ServerLink* link, const FrameHeader& header) const;
  void OnStamp(const ServerLink* link, const FrameHeader& header, Bytes stamp) const;
  void OnSendAgain(const ServerLink* link, const FrameHeader& header);
  void OnAborted(const ServerLink* link, const FrameHeader& header);

  // ---- of the source ----
  void OnReady(PartitionPush push) override;
  void OnReadable(const PartitionPush& push) override { Send(push); }

 private:
  // The tensor that awaits exactly this frame of its owner, or null.
  Shared Expecting(const ServerLink* link, const FrameHeader& header) const;
  void Send(const PartitionPush& push);
  EncodeFn EncoderOf(const Shared& tensor, uint32_t partition, Bytes payload);
  // Delivers the result as soon as nothing copies the contribution any more.
  void DeliverWhenCopied(const ServerLink* link, const FrameHeader& header, const Shared& tensor);
  void Deliver(const Shared& tensor, uint32_t partition);
  void CompleteOrAsk(const Shared& tensor);
  void Complete(NodeTensor* tensor);
  void ForgetPushes(NodeTensor* tensor);

  const NodeContext context_;
  const LocalRanks* const ranks_;
  const TensorTable* const tensors_;
  GenerationState* const state_;
  const NodeCounts* const nodes_;
  Servers* const servers_;
  Integrity* const integrity_;
  ContributionSource* source_ = nullptr;
  std::vector<Shared> unconfirmed_;  // complete rounds whose ranks wait for the scheduler's answer
};

}  // namespace addend
