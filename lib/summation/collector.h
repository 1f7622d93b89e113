// The nodes that have contributed to a partition's round, and the node whose turn it is. Pure: no
// bytes, thread, clock or I/O.
//
// A result is the sum in node order, whatever the order of arrival: so its bits do not depend on
// the network. A contribution that comes before its turn is kept, or dropped when memory is short
// and requested again at its turn.
//
// Invariants
//  1. Every node is summed exactly once in a round, in ascending order. A lost node is summed in no
//     further round, and in the open round only if its contribution was there.
//  2. A sealed round never opens again, except by GoBack(). The next round opens when a round is
//     sealed.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/base/ids.h"

namespace addend {

class Collector {
 public:
  // The use of a contribution of (node, round) now.
  enum class Standing {
    kItsTurn,   // sum it, then call Summed()
    kEarly,     // call Keep() or Drop()
    kRepeated,  // this round has it already
    kSealed,    // of the last sealed round: the node lacks its result
    kOld,       // of an earlier round
    kAhead,     // of a round that cannot have begun
  };
  // The next step for the node whose turn it is.
  enum class Next {
    kWait,  // its contribution has not arrived
    kKept,  // its contribution is kept: sum it
    kAsk,   // its contribution was dropped: request it (once; then kWait)
    kSeal,  // all nodes are summed: call Seal()
  };

  // `nodes` >= 1. Starts with round 1.
  explicit Collector(uint32_t nodes);

  Round round() const { return round_; }
  NodeId turn() const;  // only while not all nodes are summed
  // All nodes that take part in this round are summed.
  bool IsComplete() const { return position_ == states_.size(); }
  // No node follows the node whose turn it is.
  bool IsLast() const { return NextFrom(position_ + 1) == states_.size(); }
  // The number of nodes that take part in this round: all but the lost nodes.
  uint32_t contributors() const;

  Standing Classify(NodeId node, Round round) const;
  void Keep(NodeId node);
  void Drop(NodeId node);
  // The kept contribution of `node` is gone, because its link has closed: it counts as missing.
  void Forget(NodeId node);
  // The node will not contribute any more. A contribution that is kept or summed counts in this
  // round. May complete the round.
  void Lose(NodeId node);
  // The node whose turn it is has been summed.
  void Summed();
  // Marks a dropped contribution as requested when it returns kAsk.
  Next Advance();
  void Seal();
  // Another server may have been the owner: forgets the open round. The next round is `round`, or
  // the later round that this server has reached itself.
  void Restart(Round round);
  // Opens the last sealed round again: its result is lost with the only node that held it.
  void GoBack();

  // False for a contribution that was dropped and has been asked for: the round waits for it.
  bool HasPushed(NodeId node) const;
  bool IsLost(NodeId node) const { return lost_[node.value()]; }
  bool TakesPart(NodeId node) const { return states_[node.value()] != State::kAbsent; }
  // A contribution to this round has arrived, or has been kept or dropped.
  bool IsOpen() const;

 private:
  enum class State : uint8_t { kMissing, kKept, kDropped, kAsked, kSummed, kAbsent };

  uint32_t NodeAt(uint32_t position) const;
  // The first position from `position` on whose node takes part.
  uint32_t NextFrom(uint32_t position) const;
  void Open();

  Round round_{1};
  uint32_t position_ = 0;
  std::vector<State> states_;  // by node
  std::vector<bool> lost_;
};

}  // namespace addend
