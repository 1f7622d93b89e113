// Requires a deadline of calls whose answers wait for the caller to read them. Without a deadline a
// caller that does not read would occupy a thread and the answer for ever.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include <chrono>

#include "absl/strings/str_format.h"

namespace addend {

// INVALID_ARGUMENT if the call has no deadline, or a deadline later than `latest` from now.
inline grpc::Status CheckDeadline(const grpc::ServerContext& context, const char* call,
                                  std::chrono::seconds latest) {
  // gRPC keeps deadlines by its steady clock, but reports them by wall-clock time.
  if (context.deadline() <= std::chrono::system_clock::now() + latest) return grpc::Status::OK;
  return {grpc::StatusCode::INVALID_ARGUMENT,
          absl::StrFormat("%s needs a deadline of at most %d seconds", call, latest.count())};
}

}  // namespace addend
