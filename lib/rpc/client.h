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
#include "lib/rpc/tls.h"

namespace addend {

// A channel to `target` ("host:port") that notices a dead peer within 10 s, tries to connect again
// after 50 ms to 1 s, resolves names anew when it does, and never goes through an HTTP proxy.
// Returns at once; it connects at the first call. With this process's identity, or another, it is
// mutual TLS (lib/rpc/tls.h); null: plain text.
std::shared_ptr<grpc::Channel> Dial(const std::string& target);
std::shared_ptr<grpc::Channel> Dial(const std::string& target, const TlsIdentity* identity);

// The targets of "host:port,host:port".
std::vector<std::string> Targets(const std::string& targets);
// Calls each of `targets` in turn until one answers, however; else the status of the last one.
absl::Status CallAny(const std::string& targets,
                     absl::FunctionRef<grpc::Status(std::shared_ptr<grpc::Channel>)> call);

// Why none of `targets` has answered, for people: ShortReason(status), or, where it is TLS that
// fails, what is wrong with which certificate. That is found out by calling once more by hand, so
// this may block for about a second per target.
std::string WhyUnreachable(const std::string& targets, const absl::Status& status);

// Sets the call's deadline. Every call has one, except streams.
void SetDeadline(grpc::ClientContext* context, absl::Duration timeout);

}  // namespace addend
