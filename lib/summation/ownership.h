// What this server is to one of its partitions: the owner, or the owner-to-be that first has to
// learn from the nodes where the partition stands. Pure: no bytes, link, thread or clock.
//
// Server states of spec/recovery.pml (OPEN, RECOVERING), with the same transitions; a partition
// that is not held at all is ABSENT there.
//
// Invariants
//  1. An owner that takes over sums nothing before every node has reported what it holds.
//  2. The newest round that a node holds is never summed again: who lacks it gets it from one that
//     has it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lib/base/ids.h"

namespace addend {

class Ownership {
 public:
  enum class State : uint8_t {
    kOpen,        // contributions are summed
    kRecovering,  // waits for the nodes' reports
  };

  // `version` 0: the owner from the tensor's first round on. Else another server was it before.
  Ownership(uint32_t nodes, PlanVersion version);

  State state() const { return state_; }
  // The plan version that made this server the owner.
  PlanVersion version() const { return version_; }

  // The scheduler makes this server the owner once more, because somebody else was meanwhile, or
  // may have been. False: old news.
  bool Recover(PlanVersion version);

  // A node tells the last round whose result it holds. True for the report that completes them.
  bool OnReport(NodeId node, Round held);

  // ---- once all reports have come ----
  // The newest round that any node holds; 0 before the first.
  Round newest() const { return newest_; }
  bool Lacks(NodeId node) const { return lacking_[node.value()]; }
  bool AnyLacks() const;
  // A node that holds the newest round.
  NodeId Holder() const;
  // The nodes that lacked it are being sent it.
  void Supplied();

 private:
  State state_;
  PlanVersion version_;
  std::vector<std::optional<Round>> reports_;  // by node
  Round newest_;
  std::vector<bool> lacking_;  // by node: it holds only the round before the newest
};

}  // namespace addend
