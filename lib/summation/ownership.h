// What this server is to one of its partitions: the owner, one that first has to learn from the
// nodes where the partition stands, or one that hands it over. Pure: no bytes, link, thread or
// clock.
//
// Server states of spec/recovery.pml, with the same transitions; a partition that is not held at
// all is ABSENT there.
//
// Invariants
//  1. An owner that recovers sums nothing before every node that is left has reported what it
//     holds.
//  2. The newest round that a node holds is never summed again: who lacks it gets it from one that
//     has it.
//  3. An owner that hands over has sealed every round of which it has accepted a contribution, and
//     accepts none of a later one.
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
    kClosed,      // no longer the owner: kept until every node follows the new one
    kRecovering,  // waits for the nodes' reports
  };

  // `version` 0: the owner from the tensor's first round on. Else another server was it before; one
  // that lives and has `handed_over` closes between two rounds, so the nodes have nothing to
  // report.
  Ownership(uint32_t nodes, PlanVersion version, bool handed_over);

  State state() const { return state_; }
  // The plan version that made this server the owner.
  PlanVersion version() const { return version_; }
  // For people and the roll-call: "open", "closing", "closed", "recovering", or "lacking" while a
  // node is asked for the newest result.
  std::string_view Describe() const;
  bool Sums() const { return state_ == State::kOpen || state_ == State::kClosing; }

  // The scheduler makes this server the owner once more, because somebody else was meanwhile, or
  // may have been. False: old news.
  bool TakeOver(PlanVersion version, bool handed_over);

  // The scheduler makes another server the owner from `next` on. False: old news.
  bool HandOver(PlanVersion next);
  // The plan version of the next owner, once HandOver() was called.
  PlanVersion next_version() const { return next_version_; }
  // To be called whenever it may be time to close. True: now it is kClosed. `between_rounds`:
  // nothing of the round after the last sealed one has come.
  bool CloseIfDue(bool between_rounds);

  // A node tells the last round whose result it holds. True for the report that completes them.
  bool OnReport(NodeId node, Round held);

  // The node is lost: neither its report nor what it held counts any more. True if that completes
  // the reports.
  bool Lose(NodeId node);

  bool HasReported(NodeId node) const { return reports_[node.value()].has_value(); }

  // ---- once all reports have come ----
  // The newest round that any node holds; 0 before the first.
  Round newest() const { return newest_; }
  bool Lacks(NodeId node) const { return lacking_[node.value()]; }
  bool AnyLacks() const;
  // A node that holds the newest round; none: those that did are lost.
  std::optional<NodeId> Holder() const;
  // No node holds the newest round any more: the one before it is the newest, and nobody lacks it.
  void GoBack();
  // The nodes that lacked it are being sent it.
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
