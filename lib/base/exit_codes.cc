#include "lib/base/exit_codes.h"

#include <cstdlib>
#include <string>

#include "absl/strings/cord.h"

namespace addend {
namespace {
constexpr char kPayloadUrl[] = "addend/exit_code";
}  // namespace

absl::Status WithExitCode(absl::Status status, ExitCode code) {
  status.SetPayload(kPayloadUrl, absl::Cord(std::to_string(code)));
  return status;
}

ExitCode ExitCodeOf(const absl::Status& status) {
  if (status.ok()) return kExitOk;
  if (auto payload = status.GetPayload(kPayloadUrl)) {
    return static_cast<ExitCode>(std::atoi(std::string(*payload).c_str()));
  }
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kResourceExhausted:
      return kExitBadConfiguration;
    case absl::StatusCode::kFailedPrecondition:
      return kExitMismatch;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return kExitPermission;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kCancelled:
      return kExitTemporary;
    default:
      return kExitInternal;
  }
}

}  // namespace addend
