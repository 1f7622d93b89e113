// The place of a partition's contribution, and the time from which it can be read: host_source.h
// for trainers' memory, device_source.h for GPUs. Belongs to the agent's core thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "services/worker_agent/node_tensor.h"

namespace addend {

// A partition of a running round on its way to its owner.
struct PartitionPush {
  std::shared_ptr<NodeTensor> tensor;
  uint32_t partition = 0;
  Round round;
  int32_t priority = 0;
  uint64_t place = 0;  // in the convoy of this node's contributions; 0: not in the convoy
};

class ContributionSource {
 public:
  class Listener {
   public:
    virtual ~Listener() = default;
    // The node's contribution to the partition is complete.
    virtual void OnReady(PartitionPush push) = 0;
    // A contribution that Reads() has refused can be read now.
    virtual void OnReadable(const PartitionPush& push) = 0;
  };
  // `there`: the partition is in host memory. Else it never will be, since its trainer is gone.
  using Then = std::function<void(bool there)>;

  virtual ~ContributionSource() = default;
  // The rank has pushed the tensor; `on_device`: from a GPU.
  virtual void OnPush(const std::shared_ptr<NodeTensor>& tensor, uint32_t local_rank,
                      bool on_device) = 0;
  // Calls OnReady() when the contribution is complete, at once or later.
  virtual void Begin(PartitionPush push) = 0;
  // Whether the owner's link can read the contribution now. If not, OnReadable() follows.
  virtual bool Reads(const PartitionPush& push) = 0;
  // Whether the round may end for the partition: nothing copies its contribution any more.
  // `on_host`: it must be in host memory too.
  virtual bool MayEnd(const NodeTensor& tensor, uint32_t partition, bool on_host) const = 0;
  // Brings the partition to host memory. Runs `then`, at once if the answer is known; never if the
  // tensor or the generation ends first.
  virtual void Bring(const std::shared_ptr<NodeTensor>& tensor, uint32_t partition, Then then) = 0;
  // The result is in its slot.
  virtual void OnDelivered(const NodeTensor& tensor, uint32_t partition) = 0;
  // The local ranks whose data is in the segment.
  virtual std::vector<uint32_t> RanksIn(const NodeTensor& tensor, uint32_t segment) const = 0;
  // The reason why this node has not sent the contribution; empty: it is not the source's.
  virtual std::string WhyOpen(const NodeTensor& tensor) const = 0;
  // The tensor ends.
  virtual void Forget(const NodeTensor& tensor) = 0;
  // The generation has failed: no OnReady() follows.
  virtual void Stop() = 0;
};

}  // namespace addend
