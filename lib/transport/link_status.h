// What all transports say alike about a link and what came through it.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "lib/base/bytes.h"
#include "lib/base/line_pace.h"
#include "lib/transport/transport.h"
#include "lib/wire/frame.h"

namespace addend {

// A link closes with this because of what its peer sent.
bool IsMalformed(const absl::Status& status);
// Counts and logs the end of a link, where its peer is to blame.
void BlamePeer(const std::string& peer, const absl::Status& why, TransportStats* stats,
               LinePace* pace);
// DATA_LOSS: the frame carries the checksum of its payload, and it is another one.
absl::Status CheckChecksum(const FrameHeader& header, Bytes payload, const std::string& peer);

}  // namespace addend
