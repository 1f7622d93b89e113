#include "tools/addendctl/ask.h"

#include "absl/strings/str_format.h"
#include "lib/base/exit_codes.h"
#include "lib/base/status_macros.h"
#include "lib/rpc/client.h"
#include "lib/rpc/status.h"
#include "proto/addend/v1/scheduler.grpc.pb.h"

namespace addend {

absl::Status Explained(const std::string& scheduler, const absl::Status& status) {
  if (IsUnreachable(status)) {
    return WithExitCode(
        absl::UnavailableError(absl::StrFormat(
            "the scheduler %s does not answer (%s); check --scheduler and that it runs", scheduler,
            WhyUnreachable(scheduler, status))),
        kExitSchedulerUnreachable);
  }
  if (absl::IsUnimplemented(status)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s answers, but is not an Addend scheduler; check --scheduler", scheduler));
  }
  return status;
}

absl::StatusOr<v1::GetStatusResponse> AskStatus(const std::string& scheduler,
                                                const std::string& job, absl::Duration timeout) {
  v1::GetStatusRequest request;
  request.set_job(job);
  v1::GetStatusResponse response;
  ADDEND_RETURN_IF_ERROR(Explained(scheduler, CallAny(scheduler, [&](const auto& channel) {
                                     grpc::ClientContext context;
                                     SetDeadline(&context, timeout);
                                     return v1::Scheduler::NewStub(channel)->GetStatus(
                                         &context, request, &response);
                                   })));
  return response;
}

}  // namespace addend
