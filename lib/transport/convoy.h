// Keeps the links of a port side by side. A node's contribution to a round leaves through many
// links at once: each server gets its own share of the tensors. TCP and RDMA give every link of a
// port the same bandwidth: links with little to carry would finish early, and links with much would
// end the round alone, no faster than their servers can receive. So every frame has a place in the
// node's stream of bytes, in which each link's frames are spread evenly, and no link may run more
// than SendLimits::lead_bytes ahead of the last link. All links then get bandwidth in proportion to
// their load.
//
// The urgency of a frame follows from the priority of its tensor (urgency.h). More urgent frames
// never wait for less urgent frames. Less urgent frames wait while more than lead_bytes of more
// urgent frames wait on other links: a link that ran ahead to later tensors would take bandwidth
// from the links that the next result needs, and end its part of the round early. All together go
// no faster than results come back (contribution_pace.h). Belongs to one shard's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "lib/base/ids.h"
#include "lib/shard/task_loop.h"
#include "lib/transport/contribution_pace.h"
#include "lib/transport/send_limits.h"
#include "lib/transport/urgency.h"
#include "lib/wire/frame.h"

namespace addend {

class Outbox;

class Convoy {
 public:
  explicit Convoy(const SendLimits& limits) : limits_(limits) {}
  // From now on contributions are sent at the pace of their results, if there is a limit for those
  // that are awaited. `loop` outlives this.
  void PaceBy(TaskLoop* loop) {
    if (limits_.contributions_awaited == SendLimits::kUnlimited) return;
    loop_ = std::make_unique<ScopedLoop>(loop);
  }
  const SendLimits& limits() const { return limits_; }

  // Takes note of a tensor before its frames are pushed. May change the order of frames that wait,
  // and send frames.
  void OnPush(int32_t priority, uint64_t bytes);

  struct Frame {
    uint64_t place = 0;
    int32_t urgency = 0;
    bool operator==(const Frame&) const = default;
  };

 private:
  friend class Outbox;
  // Updates the convoy's record of `outbox`. `next`: the frame that the outbox sends next; nullopt
  // if the outbox has no frame or no link. `held`: the convoy alone keeps the frame from being
  // sent. May call outboxes that were held.
  void Update(Outbox* outbox, std::optional<Frame> next, bool held);
  // Returns the number of a new outbox. Outboxes are kept by number and not by address, so that the
  // same events have the same order in every process.
  uint64_t Join(Outbox* outbox);
  void Leave(uint64_t number);
  // A frame with a place is handed to the outbox's link.
  void OnSent(uint64_t outbox, const FrameHeader& header, uint64_t bytes);
  void OnArrived(uint64_t outbox, PartitionId partition);
  // The outbox has got a link that copies, or has lost its link.
  void OnLinked(uint64_t outbox);
  void OnLost(uint64_t outbox);
  int32_t UrgencyOf(int32_t priority) const { return urgency_.Of(priority); }
  // Counts bytes in an outbox whose link is open and copies, until they are handed to the link.
  void AddWaiting(int32_t urgency, uint64_t bytes) { waiting_[urgency] += bytes; }
  void RemoveWaiting(int32_t urgency, uint64_t bytes);
  // More than lead_bytes of more urgent frames wait.
  bool ManyMoreUrgent(int32_t urgency) const;
  bool MayLeave(uint64_t outbox, const Frame& frame) const;
  void ReleaseHeld();
  // While contributions wait for the results of others.
  void WatchPace();

  const SendLimits limits_;
  ContributionPace pace_{limits_.contributions_awaited, limits_.awaited_for_each_link};
  std::set<uint64_t> linked_;         // outboxes
  std::unique_ptr<ScopedLoop> loop_;  // null: no pace is kept
  bool watching_ = false;
  Urgency urgency_;
  uint64_t last_number_ = 0;
  std::map<uint64_t, Outbox*> outboxes_;
  std::set<std::pair<uint64_t, uint64_t>> order_;  // outboxes with a next frame, by its place
  std::map<uint64_t, Frame> next_;
  std::map<uint64_t, Outbox*> held_;
  std::map<int32_t, uint64_t, std::greater<>> waiting_;  // bytes by urgency, most urgent first
  bool releasing_ = false;
};

}  // namespace addend
