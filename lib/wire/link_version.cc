#include "lib/wire/link_version.h"

#include "absl/strings/str_format.h"
#include "lib/base/failure.h"

namespace addend {

absl::Status LinkVersion::Check(const FrameHeader& header) {
  if (settled_ == 0) settled_ = header.version;
  if (header.version == settled_) return absl::OkStatus();
  return MakeFailure(
      FailureKind::kVersion,
      absl::StrFormat(
          "the peer has sent a frame of version %d on a link whose HELLO settled version %d: "
          "install releases of Addend that have a version in common (docs/operations.md)",
          header.version, settled_));
}

}  // namespace addend
