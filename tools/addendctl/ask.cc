#include "tools/addendctl/ask.h"

#include <google/protobuf/descriptor.h>

#include <vector>

#include "absl/strings/str_format.h"
#include "lib/base/failure.h"
#include "lib/base/status_macros.h"
#include "lib/base/utf8.h"
#include "lib/rpc/client.h"
#include "lib/rpc/status.h"
#include "proto/addend/v1/scheduler.grpc.pb.h"

namespace addend {
namespace {

namespace pb = google::protobuf;

void MakeTextPrintable(const pb::Reflection& reflection, const pb::FieldDescriptor* field,
                       pb::Message* answer) {
  if (!field->is_repeated()) {
    reflection.SetString(answer, field, OneLine(reflection.GetString(*answer, field)));
    return;
  }
  for (int i = 0; i < reflection.FieldSize(*answer, field); ++i) {
    const std::string text = reflection.GetRepeatedString(*answer, field, i);
    reflection.SetRepeatedString(answer, field, i, OneLine(text));
  }
}

void MakeNestedPrintable(const pb::Reflection& reflection, const pb::FieldDescriptor* field,
                         pb::Message* answer) {
  if (!field->is_repeated()) {
    MakePrintable(reflection.MutableMessage(answer, field));
    return;
  }
  for (int i = 0; i < reflection.FieldSize(*answer, field); ++i) {
    MakePrintable(reflection.MutableRepeatedMessage(answer, field, i));
  }
}

}  // namespace

void MakePrintable(pb::Message* answer) {
  const pb::Reflection& reflection = *answer->GetReflection();
  std::vector<const pb::FieldDescriptor*> fields;
  reflection.ListFields(*answer, &fields);
  for (const pb::FieldDescriptor* field : fields) {
    if (field->type() == pb::FieldDescriptor::TYPE_STRING) {
      MakeTextPrintable(reflection, field, answer);
    } else if (field->cpp_type() == pb::FieldDescriptor::CPPTYPE_MESSAGE) {
      MakeNestedPrintable(reflection, field, answer);
    }
  }
}

absl::Status Explained(const std::string& scheduler, const absl::Status& status) {
  if (IsUnreachable(status)) {
    return MakeFailure(
        FailureKind::kUnreachable,
        absl::StrFormat("the scheduler %s does not answer (%s); check --scheduler and that it runs",
                        scheduler, WhyUnreachable(scheduler, status)));
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
  MakePrintable(&response);
  return response;
}

}  // namespace addend
