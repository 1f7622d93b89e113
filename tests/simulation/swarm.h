// Runs of a cluster with faults: each seed draws its own topology, sizes, and mixture of faults.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/simulation/cluster.h"

namespace addend::simulation {

// Something that happens to a cluster. Targets are numbers modulo those that exist by then, so that
// a fault keeps its meaning when others are left out.
struct Fault {
  enum class Kind {
    kKillServer,
    kAddServer,
    kDrainServer,
    kStopServer,
    kKillScheduler,
    kStoreFails,
    kDieInWrite,
    kPowerLoss,
    kStopScheduler,
    kChangeLeader,
    kCutFromScheduler,
    kKillAgent,
    kStopAgent,
    kKillRank,
    kStopRank,
    kResetPath,
    kCutPath,
    kSlowDown,
    kForgeResult,
    kEndAtResult,
    kLateResult,
    kLeave,
    kCount
  };
  absl::Duration at;
  Kind kind = Kind::kKillServer;
  uint64_t a = 0;
  uint64_t b = 0;
  absl::Duration lasts;
  bool silent = false;
};

struct Schedule {
  uint64_t seed = 0;
  Cluster::Plan plan;
  std::vector<Fault> faults;
  bool faults_in_changes = false;  // also when owners change
};

struct Outcome {
  uint64_t events = 0;   // steps of the world
  uint64_t faults = 0;   // that have happened
  uint64_t results = 0;  // of rounds, that were checked
  uint64_t trace_hash = 0;
  std::string violation;  // empty: none
  std::vector<std::string> last_lines;
};

// `power_loss`: the store may lose its last writes once.
Schedule Draw(uint64_t seed, bool power_loss = false);
std::string Describe(const Schedule& schedule);
// `trace`: print every event.
Outcome Play(const Schedule& schedule, bool trace);
// A schedule with as few faults as possible that still ends in a violation.
Schedule Minimise(const Schedule& schedule);

}  // namespace addend::simulation
