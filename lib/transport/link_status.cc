#include "lib/transport/link_status.h"

#include "absl/strings/str_format.h"
#include "lib/base/clock.h"
#include "lib/base/failure.h"
#include "lib/base/log.h"
#include "lib/base/strings.h"
#include "lib/wire/crc32c.h"

namespace addend {

bool IsMalformed(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsInvalidArgument(status) ||
         absl::IsFailedPrecondition(status);
}

void BlamePeer(const std::string& peer, const absl::Status& why, TransportStats* stats,
               LinePace* pace) {
  if (!IsMalformed(why)) return;
  stats->links_malformed.fetch_add(1, std::memory_order_relaxed);
  if (const auto others = pace->Next(SteadyNow())) {
    spdlog::warn("closing the link to {}: {}{}", peer, Message(why), *others);
  }
}

uint32_t GoawayDetail(const absl::Status& why) {
  return static_cast<uint32_t>(why.raw_code()) | static_cast<uint32_t>(ExitCodeOf(why)) << 8;
}

absl::Status FromGoaway(uint32_t detail, std::string_view reason) {
  const auto code = static_cast<absl::StatusCode>(detail & 0xff);
  if (code == absl::StatusCode::kOk)
    return absl::CancelledError("the peer closed the link on purpose");
  const absl::Status status(code, absl::string_view(reason.data(), reason.size()));
  return WithExitStatus(status, static_cast<int>(detail >> 8 & 0xff));
}

FrameHeader WithPayload(FrameHeader header, Bytes payload) {
  header.payload_bytes = static_cast<uint32_t>(payload.size());
  if (header.flags & kFlagPayloadCrc) header.payload_crc32c = Crc32c(payload);
  return header;
}

absl::Status CheckChecksum(const FrameHeader& header, Bytes payload, const std::string& peer) {
  if (!(header.flags & kFlagPayloadCrc) || payload.empty() ||
      Crc32c(payload) == header.payload_crc32c) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrFormat("a payload from %s has a wrong checksum", peer));
}

}  // namespace addend
