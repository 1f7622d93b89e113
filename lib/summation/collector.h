// Who has contributed to a partition's round, and whose turn it is. Pure: no bytes, thread, clock
// or I/O.
//
// A result is the sum in node order, so contributions are summed in turn. One that comes early is
// kept, or dropped when memory is short and asked for again when its turn has come.
//
// Invariants
//  1. Every node is summed exactly once in a round, in ascending order.
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
  // How many nodes are summed in this round so far.
  uint32_t summed() const { return position_; }
  bool IsLast() const { return position_ + 1 == states_.size(); }

  Standing Classify(NodeId node, Round round) const;
  void Keep(NodeId node);
  void Drop(NodeId node);
  // What was kept of `node` is gone (its link closed): as if it had never come.
  void Forget(NodeId node);
  // The node whose turn it is has been summed.
  void Summed();
  // May turn a dropped contribution into one that was asked for.
  Next Advance();
  void Seal();
  // Another server may have been the owner: all of the open round is forgotten, and the next one is
  // `round` or a later one that this server has reached itself.
  void Restart(Round round);

  bool HasPushed(NodeId node) const;
  // Anything of this round has come.
  bool IsOpen() const;

 private:
  enum class State : uint8_t { kMissing, kKept, kDropped, kAsked, kSummed };

  uint32_t NodeAt(uint32_t position) const;

  Round round_{1};
  uint32_t position_ = 0;
  std::vector<State> states_;  // by node
};

}  // namespace addend
