// Asking the scheduler, with answers for people when it cannot be asked.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/addend/v1/scheduler.pb.h"

namespace addend {

// `status` of a call to `scheduler` (host:port, or several with commas) as people should read it:
// one that does not answer has kExitSchedulerUnreachable, one that is something else is
// INVALID_ARGUMENT.
absl::Status Explained(const std::string& scheduler, const absl::Status& status);

// `job`: empty for all. `timeout`: of the call.
absl::StatusOr<v1::GetStatusResponse> AskStatus(const std::string& scheduler,
                                                const std::string& job, absl::Duration timeout);

}  // namespace addend
