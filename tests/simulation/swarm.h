// Runs of a cluster with faults.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/simulation/schedule.h"

namespace addend::simulation {

struct Outcome {
  uint64_t events = 0;   // steps of the world
  uint64_t faults = 0;   // that have happened
  uint64_t results = 0;  // of rounds, that were checked
  uint64_t relayed = 0;  // sums of racks that owners were sent
  uint64_t trace_hash = 0;
  std::string violation;  // empty: none
  std::vector<std::string> last_lines;
};

// `trace`: print every event.
Outcome Play(const Schedule& schedule, bool trace);
// A schedule with as few faults as possible that still ends in a violation.
Schedule Minimise(const Schedule& schedule);

}  // namespace addend::simulation
