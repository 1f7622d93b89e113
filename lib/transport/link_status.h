// What all transports say alike about a link and what came through it.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "lib/base/bytes.h"
#include "lib/wire/frame.h"

namespace addend {

// A link closes with this because of what its peer sent.
bool IsMalformed(const absl::Status& status);
// DATA_LOSS: the frame carries the checksum of its payload, and it is another one.
absl::Status CheckChecksum(const FrameHeader& header, Bytes payload, const std::string& peer);

}  // namespace addend
