// The declarations of nodes: answers to each node, refusals to all, plans for tensors on which all
// agree. Acts on a job during an event (job_scope.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "services/scheduler/job_scope.h"
#include "services/scheduler/partition_ledger.h"
#include "services/scheduler/placement.h"
#include "services/scheduler/planner.h"

namespace addend {

// Gathers the tensors that become ready to be planned; Plan() ends it.
class Declarations {
 public:
  explicit Declarations(const JobScope& scope)
      : job_(scope.job), scope_(scope), ledger_(scope), placement_(scope) {}

  // A node that takes part in a READY generation declares the tensor. `number`: the node's own for
  // it, 0 if unknown.
  void Declare(NodeId node, const v1::TensorDescriptor& descriptor, uint32_t number);
  void Undeclare(NodeId node, const std::string& name);
  // Two tensors that ranks push instead of each other: both fail on all ranks.
  void RefuseClash(const Standstill::Clash& clash);
  // A node is gone: tensors that waited only for that node go on, or end.
  void GoOnWithout();
  // Tensors that waited for servers to come back are planned, once a server is there or has had its
  // time.
  void GoOnWithServers();
  // Plans the tensors that have become ready, together.
  void Plan();

 private:
  // The participants of a declaration that can be taken. INVALID_ARGUMENT says why it cannot.
  absl::StatusOr<Participants> Check(NodeId node, const v1::TensorDescriptor& descriptor);
  void Repeat(NodeId node, DeclaredTensor* tensor, const v1::TensorDescriptor& descriptor,
              const Participants& participants);
  void Fail(DeclaredTensor* tensor, const std::string& message);
  void Evaluate(DeclaredTensor* tensor);
  void Remove(uint64_t agreement);
  void TakeDiffering(NodeId node, DeclaredTensor* tensor, const v1::TensorDescriptor& descriptor,
                     const Participants& participants);

  Job& job_;
  const JobScope scope_;
  PartitionLedger ledger_;
  Placement placement_;
  std::vector<uint64_t> ready_;                  // agreements
  std::optional<PartitionSize> partition_size_;  // found when it is needed
};

}  // namespace addend
