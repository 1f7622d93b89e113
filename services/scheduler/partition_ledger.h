// The owners of a job's partitions: their memory, their load, and the orders that follow from a
// change of owner. Acts on a job during an event (job_scope.h); decides nothing.
#pragma once

#include <cstdint>
#include <set>

#include "services/scheduler/job_scope.h"
#include "services/scheduler/planner.h"

namespace addend {

class PartitionLedger {
 public:
  explicit PartitionLedger(const JobScope& scope) : job_(scope.job), scope_(scope) {}

  // Enters the tensor's plan: the partitions that each server owns, their load and memory.
  static void Enter(Job* job, DeclaredTensor* tensor, Fleet* fleet);
  // Its partitions are relayed no more. The caller tells the servers.
  void EndRelays(DeclaredTensor* tensor);
  // Removes the tensor's plan. Servers that hold it are told to release it, except those in `told`.
  void Remove(DeclaredTensor* tensor, const std::set<ServerId>& told);

  // A new plan version, for this reason.
  void NextPlanVersion(PlanReason reason);
  // Asks the server to reserve `owned` of the tensor; it has to answer.
  void Ask(const DeclaredTensor& tensor, ServerId server, const Owned& owned);

  // Makes `to` the owner at once, under the job's plan version. Nobody is told yet.
  void Move(DeclaredTensor* tensor, const PlannedPartition& partition, const PartitionPlace& to);
  // Plans a move under the change's version: the present owner keeps its memory, the load is
  // already the next owner's.
  void PlanMove(DeclaredTensor* tensor, const PlannedPartition& partition,
                const PartitionPlace& to);
  // All planned moves of the tensor happen: the former owners are released.
  void FinishMoves(DeclaredTensor* tensor);
  // The tensor's moves to `to` are given up: these partitions stay where they are.
  void CancelMoves(DeclaredTensor* tensor, ServerId to);
  // An end of these moves is lost: the other end is the owner from this plan version on. No third
  // server, because a colocated server that lives may still sum in its node's memory, and only its
  // own recovery makes it start over.
  void KeepAtSurvivors(DeclaredTensor* tensor, const std::set<uint32_t>& partitions, ServerId lost);

  // A new owner is ready for the nodes' reports, or owns nothing any more. When all new owners of
  // the tensor are ready, the nodes are told.
  void OwnerReady(DeclaredTensor* tensor, ServerId server);

 private:
  static void Hold(DeclaredTensor* tensor, const PlannedPartition& partition, Fleet* fleet);
  // The part of owned.accumulator_bytes that is not of relays.
  uint64_t OwnersBytes(const DeclaredTensor& tensor, const Owned& owned) const;
  static void HoldRelays(Job* job, DeclaredTensor* tensor, uint32_t partition, Fleet* fleet);
  static void AddLoad(Job* job, const DeclaredTensor& tensor, const PlannedPartition& partition);
  void DropRelayLoad(const DeclaredTensor& tensor, ServerId server, const Owned& owned);
  void DropLoad(const DeclaredTensor& tensor, const PlannedPartition& partition);
  void LetGo(DeclaredTensor* tensor, ServerId from, const std::set<uint32_t>& partitions);

  Job& job_;
  const JobScope scope_;
};

}  // namespace addend
