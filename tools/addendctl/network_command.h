// `addendctl network` and `addendctl ranks`: the hosts that are near each other, and an order of a
// job's hosts that puts neighbours together.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/addend/v1/scheduler.pb.h"

namespace addend {

absl::StatusOr<v1::GetNetworkResponse> AskNetwork(const std::string& scheduler,
                                                  absl::Duration timeout);

// For people; lib/status/network_json.h is for programs.
std::string NetworkText(const v1::GetNetworkResponse& network);

// The order of a job's hosts for another launcher. `format`: hostfile (a host with its slots a
// line, for mpirun and deepspeed), torchrun (each host's --node-rank), rankfile (Open MPI) or json.
// INVALID_ARGUMENT: another format. NOT_FOUND: no such job.
absl::StatusOr<std::string> RanksText(const v1::GetStatusResponse& status,
                                      const v1::GetNetworkResponse& network, const std::string& job,
                                      const std::string& format);

}  // namespace addend
