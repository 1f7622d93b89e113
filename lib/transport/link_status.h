// Link errors and checks that all transports share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "lib/base/bytes.h"
#include "lib/base/line_pace.h"
#include "lib/transport/transport.h"
#include "lib/wire/frame.h"

namespace addend {

// True if a link closes with this status because of malformed bytes from its peer.
bool IsMalformed(const absl::Status& status);
// Counts and logs the end of a link if the peer is to blame (IsMalformed).
void BlamePeer(const std::string& peer, const absl::Status& why, TransportStats* stats,
               LinePace* pace);
// The `detail` of a GOAWAY: the status code in the low byte, the exit code above it; and the status
// that the peer's GOAWAY tells: CANCELLED if it closed on purpose.
uint32_t GoawayDetail(const absl::Status& why);
absl::Status FromGoaway(uint32_t detail, std::string_view reason);
inline constexpr size_t kGoawayBytesMax = 4096;  // of the reason
// The header of a frame with this payload: its size, and its checksum if the flags ask for it.
FrameHeader WithPayload(FrameHeader header, Bytes payload);
// DATA_LOSS: the frame carries a checksum, and the payload does not match it.
absl::Status CheckChecksum(const FrameHeader& header, Bytes payload, const std::string& peer);

}  // namespace addend
