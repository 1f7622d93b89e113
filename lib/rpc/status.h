// Converts between absl::Status and grpc::Status; no other file does. The codes have the same
// numbers. The exit status of a failure (lib/base/failure.h) travels in the status details: a
// google.rpc.Status whose details hold it as a google.protobuf.UInt32Value.
#pragma once

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"

namespace addend {

grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

// True if the peer did not answer, so that the same call may succeed later: UNAVAILABLE,
// DEADLINE_EXCEEDED, CANCELLED.
bool IsUnreachable(const absl::Status& status);
// The last cause in gRPC's chain, for people: "connection refused" and not "failed to connect to
// all ...".
std::string ShortReason(const absl::Status& status);

}  // namespace addend
