// Keeps the links of one port side by side. What a node contributes to a round leaves through many
// links at once, to each server as much as it has of the tensors. TCP and RDMA give every link of a
// port the same bandwidth: the links with little to carry would be done early, and those with much
// would end the round alone, no faster than their servers can receive. So every frame has a place
// in the node's stream of bytes, in which each link's frames are spread evenly, and no link may run
// more than a lead ahead of the last one. All then get bandwidth in proportion to what they carry.
//
// More urgent frames never wait for less urgent ones. Belongs to one shard's thread.
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
  // `next`: the frame that the outbox sends next; none: it has none, or no link. `held`: only the
  // convoy keeps it. May call outboxes that were held.
  void Update(Outbox* outbox, std::optional<Frame> next, bool held);
  bool MayLeave(const Outbox* outbox, const Frame& frame) const;
  void ReleaseHeld();

  const SendLimits limits_;
  std::set<std::pair<uint64_t, Outbox*>> order_;  // by place, of those that have a next frame
  std::map<Outbox*, Frame> next_;
  std::set<Outbox*> held_;
  bool releasing_ = false;
};

}  // namespace addend
