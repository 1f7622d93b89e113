// The plan of a job's tensors: reserve, publish, plan again where a server refuses. Acts on a job
// during an event (job_scope.h).
//
// A tensor's plan is published only when every server that it names has reserved its partitions.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/failure.h"
#include "services/scheduler/job_scope.h"
#include "services/scheduler/job_servers.h"
#include "services/scheduler/lifecycle.h"
#include "services/scheduler/partition_ledger.h"
#include "services/scheduler/relays.h"

namespace addend {

class Placement {
 public:
  explicit Placement(const JobScope& scope)
      : job_(scope.job), scope_(scope), ledger_(scope), lifecycle_(scope) {}

  // Plans the tensors that an event has completed together, so that the largest go first.
  // `agreed`: their agreements. No effect unless the job is READY.
  void PlanAll(const std::vector<uint64_t>& agreed);
  // Refuses the tensor for all nodes.
  void Refuse(DeclaredTensor* tensor, FailureKind kind, std::string message);

  // The server has answered a reservation of the tensor: all that it was asked to hold, if
  // `settled`.
  void TakeAnswer(const Server& server, DeclaredTensor* tensor, bool settled);
  // The answer was a refusal. To be followed by TakeAnswer.
  void TakeRefusal(const Server& server, DeclaredTensor* tensor, const std::string& reason);
  // The server is gone while it was to reserve partitions of the tensor.
  void LoseReservation(ServerId server, DeclaredTensor* tensor);
  // Gives up the reservation under way, and plans the tensor again. `told`: these servers hold
  // nothing of it.
  void ReserveAnew(DeclaredTensor* tensor, const std::set<ServerId>& told);
  // The nodes may have the plan already; only the store does not know that its servers have room.
  // The nodes are told of it, perhaps again, when the servers that have not answered yet have.
  void TakeAsPublished(DeclaredTensor* tensor);
  // Tells the nodes of tensors whose servers, or new owners, have answered: when no other tensor
  // waits for its own, or a while after the last time, so that many tensors cost few updates of
  // many nodes.
  void PublishAnswered();

 private:
  void PlanSet(const Participants& set, const std::vector<uint64_t>& ready);
  void PlanAlone(DeclaredTensor* tensor);
  absl::StatusOr<v1::TensorPlan> PlanAmong(Candidates candidates, const DeclaredTensor& tensor,
                                           const RelayChoice& relays, PlannerJob* view) const;
  RelayChoice RelaysFor(const Participants& set, uint64_t coming) const;
  bool PlanWithRelays(DeclaredTensor* tensor);
  std::vector<uint64_t> WithinPartitions(const std::vector<uint64_t>& agreements);
  void Reserve(DeclaredTensor* tensor, v1::TensorPlan plan, const RelayChoice& relays);
  void EndReservation(DeclaredTensor* tensor);
  // Returns whether nodes have to be told of servers, too.
  bool Publish(DeclaredTensor* tensor);
  bool AnyWaits();
  void NoteFirstPlan(const DeclaredTensor& tensor);

  Job& job_;
  const JobScope scope_;
  PartitionLedger ledger_;
  Lifecycle lifecycle_;
};

}  // namespace addend
