// The identity of this server in the frames that it sends.
#pragma once

#include <atomic>
#include <cstdint>

#include "lib/base/ids.h"
#include "lib/wire/frame.h"

namespace addend {

struct ServerIdentity {
  std::atomic<uint32_t> id{0};  // 0 until the scheduler has assigned a number
  Incarnation incarnation;

  // Makes this server the sender of the frame. Any thread.
  void Sign(FrameHeader* header) const {
    header->sender = id.load(std::memory_order_relaxed);
    header->incarnation = incarnation;
  }
};

}  // namespace addend
