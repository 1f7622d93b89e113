// Link errors and checks that all transports share.
#pragma once

#include <string>

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
// DATA_LOSS: the frame carries a checksum, and the payload does not match it.
absl::Status CheckChecksum(const FrameHeader& header, Bytes payload, const std::string& peer);

}  // namespace addend
