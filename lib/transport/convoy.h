// Keeps the links of a port side by side. A node's contribution to a round leaves through many
// links at once: each server gets its own share of the tensors. TCP and RDMA give every link of a
// port the same bandwidth: links with little to carry would finish early, and links with much would
// end the round alone, no faster than their servers can receive. So every frame has a place in the
// node's stream of bytes, in which each link's frames are spread evenly, and no link may run more
// than SendLimits::lead_bytes ahead of the last link. All links then get bandwidth in proportion to
// their load.
//
// More urgent frames never wait for less urgent frames. Belongs to one shard's thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "lib/transport/send_limits.h"

namespace addend {

class Outbox;

class Convoy {
 public:
  explicit Convoy(const SendLimits& limits) : limits_(limits) {}
  const SendLimits& limits() const { return limits_; }

  struct Frame {
    uint64_t place = 0;
    int32_t priority = 0;
    bool operator==(const Frame&) const = default;
  };

 private:
  friend class Outbox;
  // Updates the convoy's record of `outbox`. `next`: the frame that the outbox sends next; nullopt
  // if the outbox has no frame or no link. `held`: the convoy alone keeps the frame from being
  // sent. May call outboxes that were held.
  void Update(Outbox* outbox, std::optional<Frame> next, bool held);
  // The number of a new outbox. Outboxes are kept by number and not by address, so that the same
  // events have the same order in every process.
  uint64_t Join() { return ++outboxes_; }
  bool MayLeave(uint64_t outbox, const Frame& frame) const;
  void ReleaseHeld();

  const SendLimits limits_;
  uint64_t outboxes_ = 0;
  std::set<std::pair<uint64_t, uint64_t>> order_;  // outboxes with a next frame, by its place
  std::map<uint64_t, Frame> next_;
  std::map<uint64_t, Outbox*> held_;
  bool releasing_ = false;
};

}  // namespace addend
