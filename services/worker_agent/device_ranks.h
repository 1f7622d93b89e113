// The local ranks that push from GPUs: they name their GPUs, and are told the groups in which they
// aggregate. The trainers drive the GPUs themselves. Belongs to the agent's core thread.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "services/worker_agent/device_groups.h"
#include "services/worker_agent/generation_state.h"
#include "services/worker_agent/local_ranks.h"
#include "services/worker_agent/node_context.h"
#include "services/worker_agent/tensor_table.h"

namespace addend {

class DeviceRanks {
 public:
  // All pointers outlive this.
  DeviceRanks(const NodeContext& context, const LocalRanks* ranks, const TensorTable* tensors,
              GenerationState* state)
      : context_(context),
        ranks_(ranks),
        tensors_(tensors),
        state_(state),
        groups_(ranks->size()) {}

  // The rank names its GPU. With the last rank the layout is decided, and all are told.
  absl::Status OnDevice(const Trainer& trainer, ipc::DeviceMessage device);
  // The first rank of a group has made the group's id: passes it on to the other members.
  absl::Status OnGroupId(const Trainer& trainer, const ipc::GroupIdMessage& made) const;
  // The rank attaches the tensor's segment of its group.
  absl::Status OnAttach(Trainer* trainer, const ipc::AttachMessage& attach) const;
  absl::Status OnDeviceFailed(const Trainer& trainer, const ipc::DeviceFailedMessage& failed);
  // Some ranks push from GPUs and wait for the other ranks: tells them, and fails the generation
  // after --stall-timeout.
  void CheckMissing();

  const DeviceGroups& groups() const { return groups_; }
  // The rank from whose GPU a NIC reads; nullopt: no NIC does.
  const std::optional<uint32_t>& direct_rank() const { return direct_rank_; }

 private:
  absl::Status DecideLayout();
  void DecideDirect(const Topology& machine, Layout* layout);
  void TellGroup(uint32_t local_rank) const;
  void TellMissing() const;

  const NodeContext context_;
  const LocalRanks* const ranks_;
  const TensorTable* const tensors_;
  GenerationState* const state_;
  DeviceGroups groups_;
  absl::Time first_at_ = absl::InfiniteFuture();  // when the first rank named its GPU
  std::optional<uint32_t> direct_rank_;
};

}  // namespace addend
