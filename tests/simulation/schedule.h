// The schedule of a run: each seed draws its own topology, sizes, and mixture of faults.
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
    kForgetAll,
    kCount
  };
  absl::Duration at;
  Kind kind = Kind::kKillServer;
  uint64_t a = 0;
  uint64_t b = 0;
  absl::Duration lasts;
  bool silent = false;
};

// A scheduler that stands still takes no member with such a lease for lost.
constexpr absl::Duration kForgiven = absl::Seconds(3);

struct Schedule {
  uint64_t seed = 0;
  Cluster::Plan plan;
  std::vector<Fault> faults;
  bool faults_in_changes = false;  // also when owners change
};

// For messages: "kill a server".
const char* NameOf(Fault::Kind kind);
// Choices of the caller, in place of the seed.
struct Asked {
  bool power_loss = false;  // the store may lose its last writes once
  // One job of so many nodes, in racks of so many; 0: as the seed has it.
  uint32_t nodes = 0;
  uint32_t rack_nodes = 0;
};
Schedule Draw(uint64_t seed, const Asked& asked = {});
std::string Describe(const Schedule& schedule);

}  // namespace addend::simulation
