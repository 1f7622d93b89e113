// The version of the frame protocol on a link: the version of its first frame, the HELLO, in either
// direction. Every later frame has the same version. Owned by the link's thread. Pure.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "lib/wire/frame.h"

namespace addend {

class LinkVersion {
 public:
  // Sets the link's version in a frame that is to be sent.
  void Sign(FrameHeader* header) {
    if (settled_ == 0) settled_ = header->version;
    header->version = settled_;
  }
  // Checks a received frame. FAILED_PRECONDITION (exit status 66): its version is not the link's.
  absl::Status Check(const FrameHeader& header);

 private:
  uint16_t settled_ = 0;  // 0: no frame so far
};

}  // namespace addend
