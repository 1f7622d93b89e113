// An order of hosts in which neighbours stand together. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/network/groups.h"

namespace addend {

// The hosts, each once. Groups whose sizes are multiples of 64 and of 8 come first, since whole
// branches of the tree of sums (lib/base/sum_tree.h) are theirs then; otherwise all keep the order
// that they have.
std::vector<uint32_t> NeighbourOrder(uint32_t hosts, const HostGroups& groups);

}  // namespace addend
