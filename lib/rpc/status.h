// The only place where absl::Status and grpc::Status meet. The codes have the same numbers. The
// exit code that absl::Status carries (lib/base/exit_codes.h) travels in the status details: a
// google.rpc.Status whose details hold it as a google.protobuf.UInt32Value.
#pragma once

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"

namespace addend {

grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

// Whether the same call may succeed later, because the peer did not answer: UNAVAILABLE,
// DEADLINE_EXCEEDED, CANCELLED.
bool IsUnreachable(const absl::Status& status);
// The last link of gRPC's chain of causes, for people: "connection refused" and not "failed to
// connect to all ...".
std::string ShortReason(const absl::Status& status);

}  // namespace addend
