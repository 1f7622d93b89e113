#include "tools/addendctl/drain_command.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "lib/auth/job_proof.h"
#include "lib/base/clock.h"
#include "lib/base/failure.h"
#include "lib/base/status_macros.h"
#include "lib/rpc/client.h"
#include "proto/addend/v1/scheduler.grpc.pb.h"
#include "tools/addendctl/ask.h"

namespace addend {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(50);

absl::StatusOr<bool> IsMember(const std::string& scheduler, uint32_t server,
                              absl::Duration timeout) {
  ADDEND_ASSIGN_OR_RETURN(const v1::GetStatusResponse status,
                          AskStatus(scheduler, /*job=*/"", timeout));
  return std::any_of(status.servers().begin(), status.servers().end(),
                     [server](const auto& other) { return other.server_id() == server; });
}

}  // namespace

absl::StatusOr<std::string> DrainServer(const std::string& scheduler, uint32_t server,
                                        const std::string& secret_file, absl::Duration timeout,
                                        bool json) {
  v1::DrainRequest request;
  if (!secret_file.empty()) {
    ADDEND_ASSIGN_OR_RETURN(const std::string secret, auth::ReadSecretFile(secret_file));
    request.set_join_proof(auth::JoinProof(secret, auth::kOfServers));
  }
  request.set_server_id(server);
  ADDEND_RETURN_IF_ERROR(Explained(scheduler, CallAny(scheduler, [&](const auto& channel) {
                                     grpc::ClientContext context;
                                     SetDeadline(&context, timeout);
                                     v1::DrainResponse response;
                                     return v1::Scheduler::NewStub(channel)->Drain(
                                         &context, request, &response);
                                   })));
  const absl::Time deadline = SteadyNow() + timeout;
  while (true) {
    ADDEND_ASSIGN_OR_RETURN(const bool there, IsMember(scheduler, server, timeout));
    if (!there) break;
    if (SteadyNow() >= deadline) {
      return WithKind(
          absl::DeadlineExceededError(absl::StrFormat(
              "server %d is being drained, but was not done within %s: addendctl status shows what "
              "it still sums; no other server may have room for it",
              server, absl::FormatDuration(timeout))),
          FailureKind::kTemporary);
    }
    absl::SleepFor(kPoll);
  }
  if (json) return absl::StrFormat("{\"server_id\":%d,\"drained\":true}\n", server);
  return absl::StrFormat("Server %d is drained and has left.\n", server);
}

}  // namespace addend
