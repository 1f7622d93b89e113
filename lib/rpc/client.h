// Calling our services.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"

namespace addend {

// A channel to `target` ("host:port") that notices a dead peer within 10 s, tries to connect again
// after 50 ms to 1 s, resolves names anew when it does, and never goes through an HTTP proxy.
// Returns at once; it connects at the first call.
std::shared_ptr<grpc::Channel> Dial(const std::string& target);

// The targets of "host:port,host:port".
std::vector<std::string> Targets(const std::string& targets);
// Calls each of `targets` in turn until one answers, however; else the status of the last one.
absl::Status CallAny(const std::string& targets,
                     absl::FunctionRef<grpc::Status(std::shared_ptr<grpc::Channel>)> call);

// Sets the call's deadline. Every call has one, except streams.
void SetDeadline(grpc::ClientContext* context, absl::Duration timeout);

}  // namespace addend
