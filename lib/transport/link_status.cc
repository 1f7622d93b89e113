#include "lib/transport/link_status.h"

#include "absl/strings/str_format.h"
#include "lib/wire/crc32c.h"

namespace addend {

bool IsMalformed(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsInvalidArgument(status) ||
         absl::IsFailedPrecondition(status);
}

absl::Status CheckChecksum(const FrameHeader& header, Bytes payload, const std::string& peer) {
  if (!(header.flags & kFlagPayloadCrc) || payload.empty() ||
      Crc32c(payload) == header.payload_crc32c) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrFormat("a payload from %s has a wrong checksum", peer));
}

}  // namespace addend
