// The network as people see it: its groups of hosts, the typical round trips and bandwidths between
// them, and the links that are slower than their like. Pure.
#pragma once

#include "lib/network/groups.h"
#include "proto/addend/v1/scheduler.pb.h"
#include "services/scheduler/network_map.h"

namespace addend {

struct FoundGroups {
  v1::GetNetworkResponse::Source source = v1::GetNetworkResponse::UNKNOWN;
  HostGroups groups;
};

// By the hosts' places if all hosts have a place, else by the measurements.
FoundGroups GroupsOf(const NetworkFacts& facts);

// Thousands of hosts take seconds.
v1::GetNetworkResponse ViewOf(const NetworkFacts& facts);

}  // namespace addend
