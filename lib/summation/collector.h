// Who has contributed to a partition's round, and whose turn it is. Pure: no bytes, thread, clock
// or I/O.
//
// A result is the sum in node order, so contributions are summed in turn. One that comes early is
// kept, or dropped when memory is short and asked for again when its turn has come.
//
// Invariants
//  1. Every node is summed exactly once in a round, in ascending order; a lost one in no round any
//     more, but for the open one if its contribution was there.
//  2. A sealed round never opens again; the next one opens when it is sealed.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/base/ids.h"

namespace addend {

class Collector {
 public:
  // What a contribution of (node, round) is to this partition now.
  enum class Standing {
    kItsTurn,   // sum it, then call Summed()
    kEarly,     // call Keep() or Drop()
    kRepeated,  // this round has it already
    kSealed,    // of the last sealed round: the node wants its result again
    kOld,       // of a round before that
    kAhead,     // of a round that cannot have begun
  };
  // What is known of the node whose turn it is.
  enum class Next {
    kWait,  // nothing came yet
    kKept,  // its contribution is kept: sum it
    kAsk,   // its contribution was dropped: ask for it (once; then kWait)
    kSeal,  // all nodes are summed: call Seal()
  };

  // `nodes` >= 1. Starts with round 1.
  explicit Collector(uint32_t nodes);

  Round round() const { return round_; }
  NodeId turn() const;  // only while not all nodes are summed
  // All nodes that take part in this round are summed.
  bool IsComplete() const { return position_ == states_.size(); }
  // After the node whose turn it is none follows.
  bool IsLast() const { return NextFrom(position_ + 1) == states_.size(); }
  // How many nodes take part in this round: all but the lost ones.
  uint32_t contributors() const;

  Standing Classify(NodeId node, Round round) const;
  void Keep(NodeId node);
  void Drop(NodeId node);
  // What was kept of `node` is gone (its link closed): as if it had never come.
  void Forget(NodeId node);
  // The node will not contribute any more. What is kept or summed of it counts in this round. May
  // complete the round.
  void Lose(NodeId node);
  // The node whose turn it is has been summed.
  void Summed();
  // May turn a dropped contribution into one that was asked for.
  Next Advance();
  void Seal();
  // Another server may have been the owner: all of the open round is forgotten, and the next one is
  // `round` or a later one that this server has reached itself.
  void Restart(Round round);
  // The last sealed round, whose result is lost with the only node that held it, opens again.
  void GoBack();

  bool HasPushed(NodeId node) const;
  bool IsLost(NodeId node) const { return lost_[node.value()]; }
  bool TakesPart(NodeId node) const { return states_[node.value()] != State::kAbsent; }
  // Anything of this round has come.
  bool IsOpen() const;

 private:
  enum class State : uint8_t { kMissing, kKept, kDropped, kAsked, kSummed, kAbsent };

  uint32_t NodeAt(uint32_t position) const;
  // The first position from this one on whose node takes part.
  uint32_t NextFrom(uint32_t position) const;
  void Open();

  Round round_{1};
  uint32_t position_ = 0;
  std::vector<State> states_;  // by node
  std::vector<bool> lost_;
};

}  // namespace addend
