// The kinds of failures, and all that follows from a kind: the exit status of a process (meant for
// Kubernetes' podFailurePolicy, docs/operations.md), the words between members, the label of a
// metric, the error of the trainers. Any thread.
//
// A failure crosses functions, threads and gRPC as an absl::Status. A payload carries the kind
// where the status code is ambiguous (another version is a FAILED_PRECONDITION, as many other
// failures are).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace addend {

enum class FailureKind : uint8_t {
  kInvalid,      // a flag, a setting or an argument is wrong: do not retry
  kMismatch,     // nodes disagree on a tensor, a setting or the protocol
  kVersion,      // peers of different versions
  kInternal,     // a bug in Addend
  kTemporary,    // retry
  kUnreachable,  // the scheduler does not answer: retry
  kPermission,   // memlock, a device, a file
  kResources,    // servers too small for a tensor: do not retry
  kShortage,     // no room at present: retry
  kPeerLost,     // a rank, an agent or a server died: retry
  kStalled       // a rank did not take part within the stall timeout: retry
};

struct FailureTraits {
  FailureKind kind;
  std::string_view name;   // NodeUpdate.failed_kind, TensorError.kind; several kinds may share it
  std::string_view cause;  // label of addend_agent_failures_total
  int exit_status;
  absl::StatusCode code;          // of a new failure
  uint32_t addend_code;           // lib/client/addend.h
  std::string_view python_class;  // python/addend/_errors.py
};

// In the order of FailureKind. A bare exit status, or an unknown pair of name and exit status,
// reads as the first kind that has it.
inline constexpr std::array<FailureTraits, 11> kFailureTable{{
    // clang-format off
    {FailureKind::kInvalid,     "internal",  "other",     64, absl::StatusCode::kInvalidArgument,    64, "Error"},
    {FailureKind::kMismatch,    "mismatch",  "mismatch",  65, absl::StatusCode::kFailedPrecondition, 65, "MismatchError"},
    {FailureKind::kVersion,     "version",   "other",     66, absl::StatusCode::kFailedPrecondition, 66, "Error"},
    {FailureKind::kInternal,    "internal",  "other",     70, absl::StatusCode::kInternal,           70, "Error"},
    {FailureKind::kTemporary,   "internal",  "other",     75, absl::StatusCode::kUnavailable,        75, "PeerLostError"},
    {FailureKind::kUnreachable, "internal",  "other",     76, absl::StatusCode::kUnavailable,        76, "Error"},
    {FailureKind::kPermission,  "internal",  "other",     77, absl::StatusCode::kPermissionDenied,   77, "Error"},
    {FailureKind::kResources,   "resources", "resources", 64, absl::StatusCode::kResourceExhausted,  72, "Error"},
    {FailureKind::kShortage,    "resources", "resources", 75, absl::StatusCode::kResourceExhausted,  72, "Error"},
    {FailureKind::kPeerLost,    "peer_lost", "peer_lost", 75, absl::StatusCode::kUnavailable,        75, "PeerLostError"},
    {FailureKind::kStalled,     "stalled",   "stalled",   75, absl::StatusCode::kDeadlineExceeded,   78, "StalledError"},
    // clang-format on
}};

constexpr const FailureTraits& TraitsOf(FailureKind kind) {
  return kFailureTable[static_cast<size_t>(kind)];
}

// A new failure, with the status code of its kind.
absl::Status MakeFailure(FailureKind kind, std::string_view text);
// A failure whose status code says more than that of its kind. An OK status stays OK, here and
// below.
absl::Status WithKind(absl::Status status, FailureKind kind);
// A failure with an exit status that another process has chosen. No kind needs to have it.
absl::Status WithExitStatus(absl::Status status, int exit_status);
// The same failure in other words.
absl::Status WithText(const absl::Status& why, std::string_view text);

// The attached kind, else the kind that fits the exit status and the status code. Not for OK.
FailureKind KindOf(const absl::Status& status);
// The exit status of a process that ends with `status`; 0 for OK.
int ExitCodeOf(const absl::Status& status);
// The label of a metric; "other" without an attached kind.
std::string_view CauseOf(const absl::Status& status);

// The class of a failure in messages and records, as NodeUpdate.failed_kind and exit_code. Another
// release may know other words and numbers: a member that passes them on does not change them.
struct ToldFailure {
  std::string name;
  uint32_t exit_status = 0;
};

ToldFailure TellFailure(FailureKind kind);
// The name is "internal" without an attached kind: a receiver then goes by the exit status.
ToldFailure TellFailure(const absl::Status& why);
// `status`, with the kind that `told` names. A name that this release does not know attaches no
// kind.
absl::Status HearFailure(absl::Status status, const ToldFailure& told);

}  // namespace addend
