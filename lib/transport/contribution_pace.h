// Lets a node send contributions at the pace at which their results come back: no more than some
// bytes of a node wait for their results at a time, as the congestion window of TCP has it for
// acknowledgements.
//
// Contributions that run ahead of the other nodes' fill the buffers of the network and take the
// bandwidth of the results, which would let others go on. Where links are shared by contributions,
// sums and results, the contributions then end early, and the results alone use the links for the
// rest of the round.
//
// Nodes may push tensors in different orders, and a partition has no result before the last node
// has sent it. So a contribution is not counted for ever: when no result comes for a moment, the
// oldest are forgiven at about half the rate of the link, and each after a second.
//
// A contribution waits only for others of at least its urgency. Pure. Belongs to a shard's thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "lib/base/ids.h"

namespace addend {

class ContributionPace {
 public:
  // Without a result for so long half of the bytes are forgiven.
  static constexpr absl::Duration kSilence = absl::Milliseconds(25);
  // A contribution is counted for at most so long.
  static constexpr absl::Duration kLongest = absl::Seconds(1);

  // Limits the counted bytes to about `bytes`; or, if that is more, to `for_each_link`, or the
  // largest contribution so far, of each link: where links take turns, no partition has all
  // contributions before each link has had a turn.
  ContributionPace(size_t bytes, size_t for_each_link)
      : bytes_limit_(bytes), for_each_link_(for_each_link) {}
  // The number of links on which contributions leave.
  void SetLinks(size_t links) {
    links_ = links;
    SetLimit();
  }

  // A contribution of this urgency may be sent.
  bool HasRoom(int32_t urgency) const;
  // It is handed to the link with this number.
  void OnSent(uint64_t link, PartitionId partition, int32_t priority, int32_t urgency,
              uint64_t bytes, absl::Time now);
  // Its result has come, or is not expected over this link any more. False: it was not counted.
  bool OnArrived(uint64_t link, PartitionId partition, absl::Time now);
  // The link is lost, with all that was on its way.
  void OnLost(uint64_t link);
  // To be called every kSilence while contributions wait for room.
  void OnTime(absl::Time now);
  // Urgencies have changed; `urgency` is that of a priority.
  void Reorder(const std::function<int32_t(int32_t priority)>& urgency);

 private:
  using Key = std::pair<uint64_t, PartitionId>;  // the link's number
  struct Sent {
    Key key;
    int32_t priority;
    int32_t urgency;
    uint64_t bytes;
    absl::Time at;
  };
  using BySequence = std::map<uint64_t, Sent>;
  void SetLimit() { limit_ = std::max(bytes_limit_, links_ * std::max(for_each_link_, largest_)); }
  void Count(const Sent& sent);
  void Remove(BySequence::iterator sent);

  const size_t bytes_limit_;
  const size_t for_each_link_;
  size_t links_ = 0;
  size_t largest_ = 0;
  size_t limit_ = bytes_limit_;
  uint64_t last_sequence_ = 0;
  BySequence sent_;  // counted; the oldest first
  absl::flat_hash_map<Key, uint64_t> sequences_;
  std::map<int32_t, uint64_t, std::greater<>> bytes_;  // counted, by urgency
  absl::Time heard_ = absl::InfinitePast();            // the last result, or the last forgiveness
};

}  // namespace addend
