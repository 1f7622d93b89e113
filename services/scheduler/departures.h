// Ranks that have left a generation by shutdown() while other nodes wait for their contributions.
// Only the agent of such a rank knows the rank's contributions: the scheduler brings it the rounds
// that other nodes wait for, and the agent fails the generation if a round can never complete. Not
// stored, because nodes repeat it with every heartbeat. Pure.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <tuple>

#include "lib/base/ids.h"
#include "proto/addend/v1/scheduler.pb.h"
#include "services/scheduler/agreements.h"

namespace addend {

// Of a generation.
class JobDepartures {
 public:
  // True if the heartbeat told something new.
  bool Take(NodeId node, const v1::HeartbeatRequest& beat);
  // Fills in the rounds that agents of departed ranks have to look at. `tensors`: of the
  // generation.
  void Fill(const Agreements& tensors, v1::NodeUpdate* update) const;
  // All nodes have undeclared the tensor.
  void Forget(const std::string& name);

 private:
  bool TakeAwaited(const v1::HeartbeatRequest& beat);

  std::set<NodeId> nodes_;  // that have departed ranks
  // Rounds that other nodes wait for: tensor (number, name and participants) and round.
  std::set<std::tuple<uint32_t, std::string, std::string, uint64_t>> awaited_;
};

}  // namespace addend
