// The life of a generation: FORMING until all nodes and their trainers are there, READY, perhaps
// FAILED; when all nodes are idle the job starts over as the next generation. Acts on a job during
// an event (job_scope.h).
#pragma once

#include <string>
#include <utility>

#include "lib/base/failure.h"
#include "services/scheduler/job_scope.h"

namespace addend {

// The node that holds up a forming job, in a sentence; "" when all nodes and their trainers are
// there.
std::string WaitsFor(const Job& job, const Fleet& fleet);

class Lifecycle {
 public:
  explicit Lifecycle(const JobScope& scope) : job_(scope.job), scope_(scope) {}

  // Makes the job READY if nothing is missing; else nodes are told, not too often, which nodes it
  // waits for.
  void UpdateForming();
  // Tells them what has changed since they were told last, if that is a while ago.
  void TellFormingIfDue();
  // Fails a READY generation; no effect in other states.
  void Fail(std::string reason, ToldFailure told);
  void Fail(std::string reason, FailureKind kind) { Fail(std::move(reason), TellFailure(kind)); }
  // Tells the nodes of a FAILED generation, once, that no round of any of them can end any more.
  // Only then do they tell their trainers, with which a node and its results may end.
  void TellIfAllDecided();
  void StartNextGenerationIfIdle();
  void StartNextGeneration();
  // Ends the generation's state and begins that of `generation`. Members learn it from its number,
  // or are told to forget the job.
  void Begin(Generation generation);
  // Releases the memory of all tensors and drops their records and updates.
  void DropTensors();

  // Idle nodes see which nodes the next generation waits for.
  void TellIdleNodes();
  // Servers that may sum for the job learn its nodes, and whether the generation has failed.
  void TellServers();

 private:
  bool IsToldLately() const;
  void TellForming();

  Job& job_;
  const JobScope scope_;
};

}  // namespace addend
