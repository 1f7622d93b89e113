// Planned changes of a job's plan: servers join, are drained, become slower or faster. Partitions
// move to other owners between two rounds, and nothing pauses. Acts on a job during an event
// (job_scope.h).
//
// The scheduler of spec/recovery.pml (ANNOUNCED, HANDING_OVER). A job is in at most one change. The
// stored plan has the moves until all nodes follow, so that a restarted scheduler repeats the
// change from its start.
#pragma once

#include "services/scheduler/job_scope.h"
#include "services/scheduler/partition_ledger.h"

namespace addend {

class Handover {
 public:
  explicit Handover(const JobScope& scope) : job_(scope.job), scope_(scope), ledger_(scope) {}

  // Takes the change under way as far as the members' answers allow.
  void Advance();
  // Takes what a node was told: one that knows only of a lower plan version than that of a restored
  // change shows that no hand-over of the change was ordered.
  void TakeAnnounced(const Node& node, const v1::Announced& told);
  // Begins a change if the job's plan is due for it.
  void Plan();

 private:
  void AskOwnersToBe(const DeclaredTensor& tensor);
  void Announce();
  void OrderHandOvers();
  void Finish();

  Job& job_;
  const JobScope scope_;
  PartitionLedger ledger_;
};

}  // namespace addend
