// Shares a thread's time among groups of links by deficit round robin: a group cannot take the time
// of other groups, however many links it has and however much work waits in them. On a summation
// server a group is a job; links that have not named their job yet form a group too.
//
// The cost of work is its bytes. While other groups wait, the cost is instead the time that the
// work took, a nanosecond as much as a byte: a job's bytes may take several times as long as
// another job's, because they are summed when others arrive, answered with more bytes, or not in
// the cache.
//
// In a Run() every waiting group is served until it has used its quantum. Within a group the
// waiters take turns, starting after the waiter that was served last. Work comes in pieces, so a
// group may exceed its quantum; the excess is subtracted from its next quantum. A group with no
// work left loses the rest of its quantum: time cannot be saved up. A group that waits alone gets
// all the time.
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

  // The cost that a turn of a group of weight 1 may have. Large enough that looking for other work
  // in between costs nothing; small enough that a turn of every other group delays a group by
  // fractions of a millisecond each.
  static constexpr size_t kQuantum = 512 << 10;
  // A waiter is offered at least this cost (or its group's quantum, if that is less): otherwise the
  // rest of a quantum would be read in tiny pieces.
  static constexpr size_t kLeastOffer = 64 << 10;
  // The cost of a frame beside its bytes: about the bytes that can be received and summed while a
  // frame is handled. Without it empty frames would be free.
  static constexpr size_t kFrameCost = 2 << 10;

  // One direction of a link.
  class Waiter {
   public:
    struct Work {
      size_t cost = 0;     // bytes, and kFrameCost for a frame
      bool again = false;  // more work waits
    };
    virtual ~Waiter() = default;
    // Does work of a cost of about `most`.
    virtual Work Serve(size_t most) = 0;

   private:
    friend class FairTurns;
    bool joined_ = false;
    bool waiting_ = false;
    GroupId group_ = 0;
  };

  // The CPU time of this thread, in nanoseconds.
  using ClockFn = absl::AnyInvocable<int64_t()>;
  // Null `clock`: the cost of work is always the cost that its waiter reports, also while others
  // wait.
  explicit FairTurns(ClockFn clock = nullptr) : clock_(std::move(clock)) {}

  // Makes `waiter` a member of `group`, with any work it already waits for.
  void Join(Waiter* waiter, GroupId group);
  // Stops serving `waiter`. Must be called before the waiter is destroyed. Idempotent.
  void Leave(Waiter* waiter);
  // Sets the number of quanta that the group gets in a turn; the default is 1.
  void SetWeight(GroupId group, double weight) { weights_[group] = weight; }
  // Marks a joined waiter as having work. Idempotent.
  void Wait(Waiter* waiter);
  // Gives every waiting group one turn.
  void Run();
  bool AnyoneWaits() const { return !order_.empty(); }

 private:
  struct Group {
    size_t members = 0;
    int64_t credit = 0;  // bytes; negative: used ahead
    std::deque<Waiter*> waiting;
    bool in_order = false;  // waits for its turn, or is being served
    uint64_t served_in = 0;
  };
  void Serve(GroupId id, Group* group);
  size_t Serve(Waiter* waiter, size_t most);
  int64_t QuantumOf(GroupId id) const;
  void DropIfEmpty(std::map<GroupId, Group>::iterator group);

  ClockFn clock_;
  std::map<GroupId, double> weights_;  // only weights other than 1
  std::map<GroupId, Group> groups_;
  std::deque<GroupId> order_;  // waiting groups; the next to be served first
  uint64_t run_ = 0;           // the number of the current Run()
  const Group* serving_ = nullptr;
  const Waiter* served_ = nullptr;  // null once the waiter has left
};

}  // namespace addend
