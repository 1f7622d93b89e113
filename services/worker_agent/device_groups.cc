// Checks a layout, and describes its groups for the library.
#include "services/worker_agent/device_groups.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"

namespace addend {

absl::Status DeviceGroups::Join(uint32_t local_rank, std::string bus_id) {
  if (bus_id.empty() || !bus_ids_[local_rank].empty()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("local rank %d named its GPU twice, or named none", local_rank));
  }
  bus_ids_[local_rank] = std::move(bus_id);
  ++joined_;
  return absl::OkStatus();
}

std::vector<uint32_t> DeviceGroups::Missing() const {
  std::vector<uint32_t> missing;
  for (uint32_t rank = 0; rank < bus_ids_.size(); ++rank) {
    if (bus_ids_[rank].empty()) missing.push_back(rank);
  }
  return missing;
}

absl::Status DeviceGroups::Decide(Layout layout) {
  std::vector<Place> places(bus_ids_.size());
  size_t placed = 0;
  for (uint32_t group = 0; group < layout.groups.size(); ++group) {
    const std::vector<uint32_t>& members = layout.groups[group];
    if (members.size() > ipc::kMaxGroup) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%d GPUs that aggregate among themselves are too many: at most %d; "
                          "--intranode=copy takes any number",
                          members.size(), ipc::kMaxGroup));
    }
    for (uint32_t member = 0; member < members.size(); ++member, ++placed) {
      places.at(members[member]) = {group, member};
    }
  }
  if (placed != places.size()) {
    return absl::InvalidArgumentError("a layout that does not have every rank once");
  }
  layout_ = std::move(layout);
  places_ = std::move(places);
  return absl::OkStatus();
}

std::vector<uint32_t> DeviceGroups::MembersOf(uint32_t local_rank) const {
  if (!decided()) return {local_rank};
  return layout_.groups[places_[local_rank].group];
}

uint32_t DeviceGroups::LeadOf(uint32_t local_rank) const {
  return decided() ? layout_.groups[places_[local_rank].group].front() : local_rank;
}

ipc::Group DeviceGroups::GroupOf(uint32_t local_rank) const {
  ipc::Group group;
  const std::vector<uint32_t> members = MembersOf(local_rank);
  group.members = static_cast<uint32_t>(members.size());
  group.member = decided() ? places_[local_rank].member : 0;
  group.scatter = group.members > 1 && layout_.scatter;
  group.num_roots = 0;
  for (uint32_t member = 0; member < group.members; ++member) {
    const auto& roots = layout_.roots;
    const bool root = std::find(roots.begin(), roots.end(), members[member]) != roots.end();
    if (root && !group.scatter) group.roots[group.num_roots++] = member;
  }
  if (!group.scatter && group.num_roots == 0) group.num_roots = 1;  // the first member
  return group;
}

}  // namespace addend
