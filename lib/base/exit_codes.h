// Exit statuses of every binary, meant for Kubernetes' podFailurePolicy (docs/operations.md).
#pragma once

#include "absl/status/status.h"

namespace addend {

enum ExitCode : int {
  kExitOk = 0,                     // done or drained
  kExitBadConfiguration = 64,      // a flag or a setting is wrong: do not retry
  kExitMismatch = 65,              // nodes disagree on a tensor, a setting or the protocol
  kExitVersion = 66,               // peers of different versions
  kExitInternal = 70,              // a bug in Addend
  kExitTemporary = 75,             // a peer was lost: retry
  kExitSchedulerUnreachable = 76,  // retry
  kExitPermission = 77,            // memlock, a device, a file
};

// Errors cross gRPC and threads as absl::Status. A payload carries the exit code where the status
// code is ambiguous (a version mismatch is a FAILED_PRECONDITION, as many other errors are).
absl::Status WithExitCode(absl::Status status, ExitCode code);
// The attached code, otherwise the code that fits the status code.
ExitCode ExitCodeOf(const absl::Status& status);

}  // namespace addend
