// A store that has lost its last writes: a loss of power, an old copy of it. The members know of
// higher numbers than the scheduler that has read it, and say so when they open a watch. These
// numbers are not given a second time: the scheduler begins above them. Acts on a job during an
// event (job_scope.h).
//
// Where only owners have changed since, the job goes on: under a plan version above all announced
// versions, every partition is recovered (FrameType::kRecover), and the nodes report the results
// that they hold, whichever server has summed them meanwhile. Where the store does not know the
// generation or a tensor, the generation fails at once.
#pragma once

#include <cstdint>
#include <string>

#include "services/scheduler/job_scope.h"

namespace addend {

class StaleStore {
 public:
  explicit StaleStore(const JobScope& scope) : job_(scope.job), scope_(scope) {}

  // Compares the job with the numbers that a node of it has been told.
  void CompareWithNode(const v1::Announced& told);
  // Compares the job with the numbers that a server has been told of it. A server that owns nothing
  // of the job decides nothing about it.
  void CompareWithServer(const Server& server, const v1::Announced& told);

 private:
  bool BeginAbove(uint64_t announced);
  void FailForgotten(const v1::Announced& told, const std::string& difference);

  Job& job_;
  const JobScope scope_;
};

}  // namespace addend
