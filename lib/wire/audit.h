// The integrity check: chooses the rounds of partitions that are summed a second time, and the
// server that does it. Pure: all nodes compute the same choice from the plan, without messages.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lib/base/ids.h"
#include "lib/base/mix.h"

namespace addend {

// True for 1/`one_in` of all rounds of partitions; 0: never true.
inline bool IsAudited(PartitionId partition, Round round, uint32_t one_in) {
  return one_in != 0 && Mix(Mix(partition.value()) ^ round.value()) % one_in == 0;
}

// A server of `servers` (ascending) other than the owner; nullopt: there is no other server.
inline std::optional<ServerId> AuditorOf(PartitionId partition, Round round, ServerId owner,
                                         std::vector<ServerId> servers) {
  std::erase(servers, owner);
  if (servers.empty()) return std::nullopt;
  return servers[Mix(Mix(partition.value()) + round.value()) % servers.size()];
}

}  // namespace addend
