// A job during an event: the state that the objects acting on the job share. Made on the stack; the
// parts outlive it.
#pragma once

#include <cstddef>

#include "services/scheduler/changes.h"
#include "services/scheduler/fleet.h"
#include "services/scheduler/job.h"

namespace addend {

struct JobScope {
  Job& job;
  Fleet& fleet;
  Changes& changes;
  size_t jobs = 1;  // that share the machines of the CPU servers, this job included
};

}  // namespace addend
