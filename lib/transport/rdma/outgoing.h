// The frames that an end of a link sends, under flow control: queued, waiting for a grant, or done.
// Knows no queue pair.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/bytes.h"
#include "lib/transport/rdma/device.h"
#include "lib/transport/rdma/message.h"
#include "lib/transport/send_limits.h"
#include "lib/transport/transport.h"
#include "lib/wire/frame.h"

namespace addend::rdma {

class OutgoingFrames {
 public:
  struct Frame {
    FrameHeader header;
    Bytes payload;
    Done done;
    Registered memory;  // keeps the payload registered while it is written
    enum class State : uint8_t { kQueued, kAnnounced, kGranted, kDone } state = State::kQueued;

    bool is_inline() const { return payload.size() <= kInlinePayloadMax; }
  };

  // `payload` is lent until the frame's Done is collected.
  void Push(const FrameHeader& header, Bytes payload, Done done);
  // Returns the next frame whose message may leave: an inline frame is then done, a larger frame is
  // announced. Null: the queue is empty, or a limit (credit, announced payloads) is reached.
  Frame* Next();
  // The number of a frame that has left, from the number's lowest 24 bits.
  uint32_t NumberOf(uint32_t low) const { return first_ + ((low - first_) & 0xffffff); }
  // DATA_LOSS: more credits than were used.
  absl::Status AddCredits(uint16_t credits);
  // The steps after an announcement: the peer has granted the payload a place; the peer has dropped
  // the payload; the payload has been written. INVALID_ARGUMENT: the frame does not await this
  // step.
  absl::StatusOr<Frame*> Granted(uint32_t number);
  absl::Status Dropped(uint32_t number);
  absl::Status Written(uint32_t number);
  // Limits the bytes of payloads that are announced and not written; a single larger payload is
  // announced alone.
  void LimitAnnounced(size_t bytes) { announced_bytes_max_ = bytes; }

  // Takes the Dones of the leading frames that are done, in the order of pushing.
  void CollectDone(std::vector<Done>* done);
  std::vector<Done> TakeAll();
  size_t size() const { return frames_.size(); }
  // True if an announced payload is not yet written or dropped.
  bool busy() const { return announced_ > 0; }

 private:
  Frame* Find(uint32_t number, Frame::State state);
  absl::Status Finish(uint32_t number, Frame::State state, const char* what);

  std::deque<Frame> frames_;
  uint32_t first_ = 0;  // the number of the first frame
  size_t sent_ = 0;     // number of frames, from the front, that have left
  int credits_ = kFrameCredits;
  int announced_ = 0;
  size_t announced_bytes_ = 0;
  size_t announced_bytes_max_ = SendLimits::kUnlimited;
};

}  // namespace addend::rdma
