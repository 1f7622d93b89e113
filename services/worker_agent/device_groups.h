// The local ranks that push from GPUs, and their groups, which aggregate before a contribution
// reaches host memory. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "lib/client/pieces.h"
#include "lib/intranode/strategy.h"

namespace addend {

class DeviceGroups {
 public:
  explicit DeviceGroups(uint32_t local_ranks) : bus_ids_(local_ranks) {}

  // The rank's GPU. INVALID_ARGUMENT: the rank has named it before.
  absl::Status Join(uint32_t local_rank, std::string bus_id);
  bool AnyJoined() const { return joined_ > 0; }
  bool AllJoined() const { return joined_ == bus_ids_.size(); }
  std::vector<uint32_t> Missing() const;
  const std::vector<std::string>& bus_ids() const { return bus_ids_; }  // by local rank

  // Once all have joined. INVALID_ARGUMENT: a layout that leaves a rank out or is too large.
  absl::Status Decide(Layout layout);
  bool decided() const { return !places_.empty(); }
  const Layout& layout() const { return layout_; }

  // Of a rank: its group for the library, the ranks in the group, and the first of them, to whose
  // segment all of them write. Before Decide() every rank is a group of its own.
  ipc::Group GroupOf(uint32_t local_rank) const;
  std::vector<uint32_t> MembersOf(uint32_t local_rank) const;
  uint32_t LeadOf(uint32_t local_rank) const;

 private:
  struct Place {
    uint32_t group = 0;
    uint32_t member = 0;
  };
  std::vector<std::string> bus_ids_;
  uint32_t joined_ = 0;
  Layout layout_;
  std::vector<Place> places_;  // by local rank
};

}  // namespace addend
