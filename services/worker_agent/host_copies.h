// Contributions on a GPU that a NIC reads: brings partitions to host memory for other readers, a
// server without RDMA, an auditor, or this agent. Belongs to the agent's core thread.
//
// The copy lands where the rank's next contribution may come from host memory, so no round may end
// before the copies requested in it are there: see ContributionSource::MayEnd.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "services/worker_agent/contribution_source.h"
#include "services/worker_agent/node_tensor.h"

namespace addend {

class HostCopies {
 public:
  // Asks the trainer for the partition of the running round. False: it is gone.
  using Ask = std::function<bool(const NodeTensor&, uint32_t partition)>;
  using Then = ContributionSource::Then;
  explicit HostCopies(Ask ask) : ask_(std::move(ask)) {}

  // As ContributionSource::Bring().
  void Bring(const std::shared_ptr<NodeTensor>& tensor, uint32_t partition, Then then);
  // The copy was requested and is not there.
  bool Awaits(const NodeTensor& tensor, uint32_t partition) const {
    return awaited_.contains({tensor.number, partition});
  }
  bool AwaitsAnyOf(const NodeTensor& tensor) const;
  // The trainer has copied it. INVALID_ARGUMENT: it was not requested.
  absl::Status OnFetched(NodeTensor* tensor, Round round, uint64_t offset, uint64_t bytes);
  // The trainer is gone.
  void GiveUp();
  void Forget(const NodeTensor& tensor);
  void Clear() { awaited_.clear(); }

 private:
  using Key = std::pair<uint32_t, uint32_t>;  // tensor number, partition
  const Ask ask_;
  std::map<Key, std::vector<Then>> awaited_;
};

}  // namespace addend
