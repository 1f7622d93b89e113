// Which partitions' rounds are summed a second time, and by whom. Pure: all nodes compute the same
// from the plan, so that nobody has to tell them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lib/base/ids.h"
#include "lib/base/mix.h"

namespace addend {

// One of `one_in` partitions' rounds; 0: none.
inline bool IsAudited(PartitionId partition, Round round, uint32_t one_in) {
  return one_in != 0 && Mix(Mix(partition.value()) ^ round.value()) % one_in == 0;
}

// One of `servers` (ascending) that is not the owner; none: there is no other.
inline std::optional<ServerId> AuditorOf(PartitionId partition, Round round, ServerId owner,
                                         std::vector<ServerId> servers) {
  std::erase(servers, owner);
  if (servers.empty()) return std::nullopt;
  return servers[Mix(Mix(partition.value()) + round.value()) % servers.size()];
}

}  // namespace addend
