#include "lib/base/failure.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"

namespace addend {
namespace {

constexpr char kKindUrl[] = "addend/failure_kind";
constexpr char kExitStatusUrl[] = "addend/exit_status";

constexpr bool IsInOrder() {
  size_t index = 0;
  for (const FailureTraits& traits : kFailureTable) {
    if (static_cast<size_t>(traits.kind) != index++) return false;
  }
  return true;
}
static_assert(IsInOrder());

absl::string_view ToAbsl(std::string_view text) { return {text.data(), text.size()}; }

std::optional<int> NumberIn(const absl::Status& status, const char* url) {
  const auto payload = status.GetPayload(url);
  if (!payload.has_value()) return std::nullopt;
  return std::atoi(std::string(*payload).c_str());
}

void Attach(absl::Status* status, const char* url, int number) {
  status->SetPayload(url, absl::Cord(std::to_string(number)));
}

std::optional<FailureKind> AttachedKind(const absl::Status& status) {
  const auto number = NumberIn(status, kKindUrl);
  if (!number.has_value()) return std::nullopt;
  return static_cast<FailureKind>(*number);
}

// Of the first kind that `fits`, or nullptr.
template <typename Predicate>
const FailureTraits* Find(Predicate fits) {
  const auto found = std::find_if(kFailureTable.begin(), kFailureTable.end(), fits);
  return found == kFailureTable.end() ? nullptr : &*found;
}

FailureKind KindOfExitStatus(absl::StatusCode code, int exit_status) {
  // The trainers' errors tell a lack of resources from other reasons for the same exit status.
  const bool resources = code == absl::StatusCode::kResourceExhausted &&
                         exit_status != TraitsOf(FailureKind::kVersion).exit_status;
  if (resources) {
    return exit_status == TraitsOf(FailureKind::kShortage).exit_status ? FailureKind::kShortage
                                                                       : FailureKind::kResources;
  }
  const FailureTraits* const traits =
      Find([exit_status](const FailureTraits& t) { return t.exit_status == exit_status; });
  return traits == nullptr ? FailureKind::kInternal : traits->kind;
}

FailureKind KindOfCode(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kNotFound:
      return FailureKind::kInvalid;
    case absl::StatusCode::kResourceExhausted:
      return FailureKind::kResources;
    case absl::StatusCode::kFailedPrecondition:
      return FailureKind::kMismatch;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return FailureKind::kPermission;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kCancelled:
      return FailureKind::kTemporary;
    default:
      return FailureKind::kInternal;
  }
}

const FailureTraits& NamedTraits(const absl::Status& status) {
  return TraitsOf(AttachedKind(status).value_or(FailureKind::kInternal));
}

// The traits that the words of a member name, or nullptr: a failure of kInternal's name is told
// from others of that name by the exit status alone.
const FailureTraits* Named(const ToldFailure& told) {
  const auto exit_status = static_cast<int>(told.exit_status);
  if (exit_status == TraitsOf(FailureKind::kVersion).exit_status) {
    return &TraitsOf(FailureKind::kVersion);
  }
  if (told.name == TraitsOf(FailureKind::kInternal).name) return nullptr;
  const auto has_name = [&told](const FailureTraits& t) { return t.name == told.name; };
  const FailureTraits* const exact = Find([&has_name, exit_status](const FailureTraits& t) {
    return has_name(t) && t.exit_status == exit_status;
  });
  return exact == nullptr ? Find(has_name) : exact;
}

}  // namespace

absl::Status MakeFailure(FailureKind kind, std::string_view text) {
  return WithKind(absl::Status(TraitsOf(kind).code, ToAbsl(text)), kind);
}

absl::Status WithKind(absl::Status status, FailureKind kind) {
  status.ErasePayload(kExitStatusUrl);
  Attach(&status, kKindUrl, static_cast<int>(kind));
  return status;
}

absl::Status WithExitStatus(absl::Status status, int exit_status) {
  status.ErasePayload(kKindUrl);
  Attach(&status, kExitStatusUrl, exit_status);
  return status;
}

absl::Status WithText(const absl::Status& why, std::string_view text) {
  absl::Status status(why.code(), ToAbsl(text));
  for (const char* const url : {kKindUrl, kExitStatusUrl}) {
    if (const auto number = NumberIn(why, url)) Attach(&status, url, *number);
  }
  return status;
}

FailureKind KindOf(const absl::Status& status) {
  if (const auto kind = AttachedKind(status)) return *kind;
  if (const auto exit_status = NumberIn(status, kExitStatusUrl)) {
    return KindOfExitStatus(status.code(), *exit_status);
  }
  return KindOfCode(status.code());
}

int ExitCodeOf(const absl::Status& status) {
  if (status.ok()) return EXIT_SUCCESS;
  if (const auto exit_status = NumberIn(status, kExitStatusUrl)) return *exit_status;
  return TraitsOf(KindOf(status)).exit_status;
}

std::string_view CauseOf(const absl::Status& status) { return NamedTraits(status).cause; }

ToldFailure TellFailure(FailureKind kind) {
  const FailureTraits& traits = TraitsOf(kind);
  return {std::string(traits.name), static_cast<uint32_t>(traits.exit_status)};
}

ToldFailure TellFailure(const absl::Status& why) {
  return {std::string(NamedTraits(why).name), static_cast<uint32_t>(ExitCodeOf(why))};
}

absl::Status HearFailure(absl::Status status, const ToldFailure& told) {
  const auto exit_status = static_cast<int>(told.exit_status);
  const FailureTraits* const traits = Named(told);
  if (traits == nullptr) return WithExitStatus(std::move(status), exit_status);
  status = WithKind(std::move(status), traits->kind);
  if (exit_status != traits->exit_status) Attach(&status, kExitStatusUrl, exit_status);
  return status;
}

}  // namespace addend
