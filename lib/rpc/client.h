// Clients of Addend's gRPC services.
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

// A channel to `target` ("host:port") that notices a dead peer within 10 s, reconnects after 50 ms
// to 1 s, resolves the name again when it does, and never goes through an HTTP proxy. Returns at
// once; the first call connects. Uses mutual TLS with this process's identity, or with `identity`
// (lib/rpc/tls.h); null: plain text. Refuses answers of more than `max_answer_bytes`
// (kMaxAnswerBytes of lib/rpc/server.h).
std::shared_ptr<grpc::Channel> Dial(const std::string& target);
std::shared_ptr<grpc::Channel> Dial(const std::string& target, const TlsIdentity* identity);
std::shared_ptr<grpc::Channel> Dial(const std::string& target, const TlsIdentity* identity,
                                    int max_answer_bytes);

// Splits "host:port,host:port" at the commas.
std::vector<std::string> Targets(const std::string& targets);
// Calls each of `targets` in turn until a target answers, also with an error; otherwise returns the
// status of the last target.
absl::Status CallAny(const std::string& targets,
                     absl::FunctionRef<grpc::Status(std::shared_ptr<grpc::Channel>)> call);

// The reason for people why no target answered: ShortReason(status), or the faulty certificate if
// TLS failed. To find that certificate it repeats the handshake, so it may block for about a second
// per target.
std::string WhyUnreachable(const std::string& targets, const absl::Status& status);

// Sets the call's deadline. Every call except streams has a deadline.
void SetDeadline(grpc::ClientContext* context, absl::Duration timeout);

}  // namespace addend
