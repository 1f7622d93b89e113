// Contributions that local ranks push from GPUs: the order in which they are staged to host memory,
// contributions that a NIC reads from a GPU, and copies of these for other readers. Ranks that push
// from host memory are served as by HostSource. Belongs to the agent's core thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "services/worker_agent/contribution_source.h"
#include "services/worker_agent/device_ranks.h"
#include "services/worker_agent/host_copies.h"
#include "services/worker_agent/staging.h"

namespace addend {

class DeviceSource final : public ContributionSource {
 public:
  // All pointers outlive the source. `host` gets the contributions that are in host memory.
  DeviceSource(const NodeContext& context, const LocalRanks* ranks, const TensorTable* tensors,
               GenerationState* state, const DeviceRanks* devices, ContributionSource* host,
               Listener* listener);

  // ---- messages of trainers ----
  // The rank has done its part of a contribution, up to a byte.
  absl::Status OnStaged(const Trainer& trainer, const ipc::StagedMessage& staged);
  // The rank offers memory of its GPU for a NIC to read.
  absl::Status OnDirect(const Trainer& trainer, const ipc::DirectMessage& offer, UniqueFd dmabuf);
  // The rank has made a copy that was requested.
  absl::Status OnFetched(const Trainer& trainer, const ipc::FetchedMessage& fetched);
  // The rank is gone: copies that it was to make never come.
  void OnRankGone(uint32_t local_rank);
  // NICs read no GPU for the rest of the generation: contributions on the GPU are copied.
  void StopReadingDevices(const std::string& why);

  void OnPush(const std::shared_ptr<NodeTensor>& tensor, uint32_t local_rank,
              bool on_device) override;
  void Begin(PartitionPush push) override;
  bool Reads(const PartitionPush& push) override;
  bool MayEnd(const NodeTensor& tensor, uint32_t partition, bool on_host) const override;
  void Bring(const std::shared_ptr<NodeTensor>& tensor, uint32_t partition, Then then) override;
  void OnDelivered(const NodeTensor& tensor, uint32_t partition) override;
  std::vector<uint32_t> RanksIn(const NodeTensor& tensor, uint32_t segment) const override;
  std::string WhyOpen(const NodeTensor& tensor) const override;
  void Forget(const NodeTensor& tensor) override;
  void Stop() override;

 private:
  bool IsDirectRank(const Trainer& trainer) const;
  // Whether a NIC shall read the round that is about to be contributed from the GPU.
  bool GoesDirect(const NodeTensor& tensor) const;
  bool RequestCopy(const NodeTensor& tensor, uint32_t partition) const;
  void TellContribute(NodeTensor* tensor, uint32_t lead) const;
  void SendWhenBrought(const PartitionPush& push);
  void FailForGoneRank(const PartitionPush& push);

  const NodeContext context_;
  const LocalRanks* const ranks_;
  const TensorTable* const tensors_;
  GenerationState* const state_;
  const DeviceRanks* const devices_;
  ContributionSource* const host_;
  Listener* const listener_;
  StagingOrder order_;
  StagingQueue queue_;
  HostCopies copies_;
  // Contributions to send when they are in host memory, each as urgently as was asked for.
  absl::flat_hash_map<PartitionId, PartitionPush> unsent_;
  bool may_read_devices_ = true;
};

}  // namespace addend
