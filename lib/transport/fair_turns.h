// Whose turn it is among links that wait, so that no group of links, however many it has and
// however much waits in them, takes the time of the others: deficit round robin. On a summation
// server a group is a job; links that have not said whose they are, are a group too.
//
// Work costs its bytes. Where others wait meanwhile it costs the time that it took, a nanosecond as
// much as a byte: one job's bytes may take several times as long as another's, since they are
// summed when others come, answered with more, or not in the cache.
//
// In one Run() every group that waits is served until it has used its quantum. Within a group the
// waiters take turns, from where the last one stopped. What a group used above its quantum, since
// work comes in pieces, it lacks the next time; what it did not use, since nothing waited any more,
// is gone: nobody saves up time. A group that waits alone gets all.
//
// Knows no link and no socket. Belongs to one shard's thread. A waiter that is being served may
// call everything but Run().
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>

#include "absl/functional/any_invocable.h"

namespace addend {

class FairTurns {
 public:
  using GroupId = uint64_t;

  // What the turn of a group of weight 1 may cost. Large enough that looking for other work in
  // between costs nothing; small enough that waiting for a turn of every other group takes
  // fractions of a millisecond each.
  static constexpr size_t kQuantum = 512 << 10;
  // Who has a turn is offered at least so much (or its group's quantum): what is left of a quantum
  // would else be read in crumbs.
  static constexpr size_t kLeastOffer = 64 << 10;
  // What a frame counts beside its bytes: about what can be received and summed while one is
  // handled. Else empty frames would be free.
  static constexpr size_t kFrameCost = 2 << 10;

  // One direction of a link.
  class Waiter {
   public:
    struct Work {
      size_t cost = 0;     // bytes, and kFrameCost for a frame
      bool again = false;  // more waits
    };
    virtual ~Waiter() = default;
    // Does about `most` of its work.
    virtual Work Serve(size_t most) = 0;

   private:
    friend class FairTurns;
    bool joined_ = false;
    bool waiting_ = false;
    GroupId group_ = 0;
  };

  // What this thread has run, in nanoseconds.
  using ClockFn = absl::AnyInvocable<int64_t()>;
  // Null: work costs what its waiter says, also while others wait.
  explicit FairTurns(ClockFn clock = nullptr) : clock_(std::move(clock)) {}

  // From now on it takes turns of this group, with what it waits for.
  void Join(Waiter* waiter, GroupId group);
  // It is not asked any more. Before it is destroyed; idempotent.
  void Leave(Waiter* waiter);
  // The quanta that the group gets in a turn; 1 if nothing is said.
  void SetWeight(GroupId group, double weight) { weights_[group] = weight; }
  // Of one that has joined: it has work to do. Idempotent.
  void Wait(Waiter* waiter);
  // One turn of every group that waits.
  void Run();
  bool AnyoneWaits() const { return !order_.empty(); }

 private:
  struct Group {
    size_t members = 0;
    int64_t credit = 0;  // of bytes; negative: used ahead
    std::deque<Waiter*> waiting;
    bool in_order = false;  // waits for its turn, or has it
    uint64_t served_in = 0;
  };
  void Serve(GroupId id, Group* group);
  size_t Serve(Waiter* waiter, size_t most);
  int64_t QuantumOf(GroupId id) const;
  void DropIfEmpty(std::map<GroupId, Group>::iterator group);

  ClockFn clock_;
  std::map<GroupId, double> weights_;  // of those that have another one than 1
  std::map<GroupId, Group> groups_;
  std::deque<GroupId> order_;  // of those that wait; the next one first
  uint64_t run_ = 0;           // the number of this one
  const Group* serving_ = nullptr;
  const Waiter* served_ = nullptr;  // null once it has left
};

}  // namespace addend
