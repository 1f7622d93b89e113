// Queries to the scheduler, with readable errors if it does not answer.
#pragma once

#include <google/protobuf/message.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/addend/v1/scheduler.pb.h"

namespace addend {

// Returns a readable form of the `status` of a call to `scheduler` (host:port, or several with
// commas): FailureKind::kUnreachable for a scheduler that does not answer, INVALID_ARGUMENT for a
// service that is no scheduler.
absl::Status Explained(const std::string& scheduler, const absl::Status& status);

// Applies OneLine() of utf8.h to every string field of an answer, at any depth. Members choose the
// texts (names, reasons, activities), and must not forge lines of a table or send escape sequences
// to a terminal. Call it on every received answer.
void MakePrintable(google::protobuf::Message* answer);

// `job`: empty for all jobs. `timeout`: of the call.
absl::StatusOr<v1::GetStatusResponse> AskStatus(const std::string& scheduler,
                                                const std::string& job, absl::Duration timeout);

}  // namespace addend
