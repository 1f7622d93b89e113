// The role of this server for a partition: it is the owner, it first has to learn from the nodes
// where the partition stands, or it hands the partition over. Pure: no bytes, link, thread or
// clock.
//
// The states are the server states of spec/recovery.pml, with the same transitions. A partition
// that is not held at all is ABSENT there.
//
// Invariants
//  1. An owner that recovers sums nothing before every remaining node has reported the newest round
//     that it holds.
//  2. The newest round that a node holds is never summed again: the nodes that lack its result get
//     it from a node that has it. So all nodes have the same bits.
//  3. An owner that hands over has sealed every round to which it has accepted a contribution, and
//     accepts no contribution to a later round.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "lib/base/ids.h"

namespace addend {

class Ownership {
 public:
  enum class State : uint8_t {
    kOpen,        // contributions are summed
    kClosing,     // the same, until the round is sealed that has begun
    kClosed,      // no longer the owner: kept until every node follows the new owner
    kRecovering,  // waits for the nodes' reports
  };

  // `version` 0: the owner from the tensor's first round on. Else another server was the owner
  // before. A former owner that lives, and has `handed_over`, closes between two rounds: then the
  // nodes have nothing to report.
  Ownership(uint32_t nodes, PlanVersion version, bool handed_over);

  State state() const { return state_; }
  // The plan version that made this server the owner.
  PlanVersion version() const { return version_; }
  // For people and the roll-call: "open", "closing", "closed", "recovering", or "lacking" while the
  // newest result is requested from a node.
  std::string_view Describe() const;
  bool Sums() const { return state_ == State::kOpen || state_ == State::kClosing; }

  // The scheduler makes this server the owner again, because another server was the owner
  // meanwhile, or may have been. False: the version is old, and nothing has changed.
  bool TakeOver(PlanVersion version, bool handed_over);

  // The scheduler makes another server the owner from `next` on. False: the version is old, and
  // nothing has changed.
  bool HandOver(PlanVersion next);
  // The plan version of the next owner, once HandOver() was called.
  PlanVersion next_version() const { return next_version_; }
  // To be called whenever the partition may be due to close. True: it is kClosed now.
  // `between_rounds`: no contribution to the round after the last sealed round has arrived.
  bool CloseIfDue(bool between_rounds);

  // A node reports the last round whose result it holds. True for the report that completes them.
  bool OnReport(NodeId node, Round held);

  // The node is lost: neither its report nor its results count any more. True if that completes the
  // reports.
  bool Lose(NodeId node);

  bool HasReported(NodeId node) const { return reports_[node.value()].has_value(); }

  // ---- once all reports have come ----
  // The newest round that any node holds; 0 before the first.
  Round newest() const { return newest_; }
  bool Lacks(NodeId node) const { return lacking_[node.value()]; }
  bool AnyLacks() const;
  // A node that holds the newest round; nullopt if all of those are lost.
  std::optional<NodeId> Holder() const;
  // No node holds the newest round any more: the round before it becomes the newest, and all nodes
  // hold that.
  void GoBack();
  // The newest result is on its way to the nodes that lacked it.
  void Supplied();

 private:
  bool EndIfAllHaveReported();

  State state_;
  PlanVersion version_;
  PlanVersion next_version_;
  std::vector<std::optional<Round>> reports_;  // by node
  Round newest_;
  std::vector<bool> lacking_;  // by node: it holds only the round before the newest
  std::vector<bool> lost_;     // by node
};

}  // namespace addend
