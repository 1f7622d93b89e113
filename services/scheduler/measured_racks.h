// The racks of a job's nodes by the members' measurements, for jobs whose nodes were not told their
// places. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "services/scheduler/job.h"
#include "services/scheduler/network_map.h"

namespace addend {

// The number of each node's rack, by rank of the node. Empty: a node is missing or has no numeric
// address, its host was not measured with each of the others, or there is a single rack.
std::vector<uint32_t> MeasuredRacks(const Job& job, const NetworkMap& map);

}  // namespace addend
