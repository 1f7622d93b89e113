// The network between the members as JSON, for programs. Field names are a contract, as in
// status_json.h.
#pragma once

#include <string>

#include "proto/addend/v1/scheduler.pb.h"

namespace addend {

// {"source", "levels", "hosts": [...], "kinds": [...], "slow": [...], "pairs"}, and a line feed.
std::string NetworkJson(const v1::GetNetworkResponse& network);

}  // namespace addend
