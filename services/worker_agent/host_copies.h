// Contributions that lie on a GPU, where a NIC reads them: brings partitions to host memory when
// somebody else is to read them, a server without RDMA, an auditor, or this agent. Belongs to the
// agent's core thread.
//
// The copy lands where the rank's next contribution may come from host memory, so no round may end
// before what was asked for in it is there: see Agent::OnResult.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "services/worker_agent/tensor.h"

namespace addend {

class HostCopies {
 public:
  // Asks the trainer for the partition of the running round. False: it is gone.
  using Ask = std::function<bool(const Tensor&, uint32_t partition)>;
  // `there`: the partition of the running round is in host memory. Else it never will be: the
  // trainer is gone.
  using Then = std::function<void(bool there)>;
  explicit HostCopies(Ask ask) : ask_(std::move(ask)) {}

  // Runs `then`, at once if that can be said already; never if the tensor or the generation ends
  // first.
  void Bring(const std::shared_ptr<Tensor>& tensor, uint32_t partition, Then then);
  // It has been asked for and is not there.
  bool Awaits(const Tensor& tensor, uint32_t partition) const {
    return awaited_.contains({tensor.number, partition});
  }
  bool AwaitsAnyOf(const Tensor& tensor) const;
  // The trainer has copied it. INVALID_ARGUMENT: nobody asked.
  absl::Status OnFetched(Tensor* tensor, Round round, uint64_t offset, uint64_t bytes);
  // The trainer is gone.
  void GiveUp();
  void Forget(const Tensor& tensor);
  void Clear() { awaited_.clear(); }

 private:
  using Key = std::pair<uint32_t, uint32_t>;  // tensor number, partition
  const Ask ask_;
  std::map<Key, std::vector<Then>> awaited_;
};

}  // namespace addend
