// The declared tensors of a generation on this node, by name, number and id: declarations, and
// their end. Belongs to the agent's core thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "lib/base/ids.h"
#include "services/worker_agent/local_ranks.h"
#include "services/worker_agent/node_tensor.h"
#include "services/worker_agent/result_slots.h"
#include "services/worker_agent/scheduler_reports.h"

namespace addend {

// INVALID_ARGUMENT: a trainer's declaration that no tensor can have, in a job of `job_size` ranks.
absl::StatusOr<TensorShape> ReadShape(ipc::DeclareMessage declare, uint64_t job_size,
                                      const WireFormat& job_wire = {});

class TensorTable {
 public:
  using Shared = std::shared_ptr<NodeTensor>;

  // `nodes`: of the job. All pointers outlive the table.
  TensorTable(Generation generation, uint32_t nodes, const LocalRanks* ranks,
              SchedulerReports* reports, ResultSlots* slots)
      : generation_(generation), nodes_(nodes), ranks_(ranks), reports_(reports), slots_(slots) {}

  // ---- the trainers' declarations ----
  // Attaches the rank to the tensor, which is made at the first declaration. A rank that has
  // released a tensor may declare the name again before the other ranks have released it: then a
  // second instance waits behind the first. FAILED_PRECONDITION: another rank has declared the name
  // differently; `*conflicting` is its tensor, which the caller fails. The scheduler tells the
  // other nodes. RESOURCE_EXHAUSTED: too many tensors, or no memory.
  // INVALID_ARGUMENT: the rank is not one of the participants.
  absl::StatusOr<Shared> Attach(uint32_t local_rank, TensorShape shape, Shared* conflicting);
  // Declares the first instance of the name to the scheduler, unless that was done; as every rank
  // has declared it, if ranks differ.
  void DeclareFront(const std::string& name);
  // The tensor that the rank has attached, or null.
  Shared Attached(uint32_t number, uint32_t local_rank) const;
  // Returns IsDone().
  bool Release(const Shared& tensor, uint32_t local_rank);
  // All ranks have released it, and it can be removed. While its plan or its refusal is on the way
  // it cannot: the scheduler matches the nodes' declarations of a name in turn, so what arrives
  // next for that name is meant for this tensor.
  static bool IsDone(const NodeTensor& tensor);
  // Undeclares the released tensor, and declares the next instance of its name. Only its id is
  // known any more, until ForgetPlan(): other nodes may still need a result that this node holds.
  void Remove(const Shared& tensor);
  // Repeats declarations without a plan, to a scheduler that may have lost them.
  void DeclareAgain() const;

  // ---- the plan ----
  // The tensor has its plan: its id leads to it.
  void EnterPlan(const Shared& tensor) { by_id_[tensor->id] = tensor; }
  void ForgetPlan(TensorId id) { by_id_.erase(id); }

  // ---- lookup: null if unknown ----
  Shared ByNumber(uint32_t number) const;
  // The first instance of the name.
  Shared ByName(const std::string& name) const;
  Shared ById(TensorId id) const;
  // The first error of a single tensor, except an error after a node's loss; OK: no such error.
  absl::Status FirstError() const;

  const std::map<uint32_t, Shared>& by_number() const { return by_number_; }
  const absl::flat_hash_map<TensorId, Shared>& by_id() const { return by_id_; }
  // The same by ascending id: frames are sent in the same order in every process, so that a run of
  // the simulator can be repeated.
  std::vector<Shared> InOrder() const;

 private:
  absl::Status Mismatch(const NodeTensor& tensor, const TensorShape& shape,
                        uint32_t local_rank) const;
  void DeclareDiffering(const NodeTensor& tensor);

  const Generation generation_;
  const uint32_t nodes_;
  const LocalRanks* const ranks_;
  SchedulerReports* const reports_;
  ResultSlots* const slots_;
  uint32_t next_number_ = 1;
  std::map<uint32_t, Shared> by_number_;
  std::map<std::string, std::deque<Shared>> by_name_;  // instances; the scheduler knows the front
  absl::flat_hash_map<TensorId, Shared> by_id_;
};

}  // namespace addend
