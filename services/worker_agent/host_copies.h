// Contributions that lie on a GPU, where a NIC reads them: brings partitions to host memory when
// somebody else is to read them, a server without RDMA, an auditor, or this agent. Belongs to the
// agent's core thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "services/worker_agent/tensor.h"

namespace addend {

class HostCopies {
 public:
  // Asks the trainer for the partition of the running round.
  using Ask = std::function<void(const Tensor&, uint32_t partition)>;
  explicit HostCopies(Ask ask) : ask_(std::move(ask)) {}

  // `then` runs once the partition of the running round is in host memory: at once if it is. Not at
  // all if the tensor or the generation ends first.
  void Bring(const std::shared_ptr<Tensor>& tensor, uint32_t partition, std::function<void()> then);
  // The trainer has copied it. INVALID_ARGUMENT: nobody asked.
  absl::Status OnFetched(Tensor* tensor, Round round, uint64_t offset, uint64_t bytes);
  void Forget(const Tensor& tensor);
  void Clear() { awaited_.clear(); }

 private:
  // Tensor number, partition, round: one that was asked for may come when its round is over.
  using Key = std::tuple<uint32_t, uint32_t, Round>;
  const Ask ask_;
  std::map<Key, std::vector<std::function<void()>>> awaited_;
};

}  // namespace addend
